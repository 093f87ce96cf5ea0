"""Rules: for each torch op, which factors its dims are made of, so which of them may be split. Rules know no cost."""

"""The rows: for each torch op, the factors of its dims and what one device runs."""

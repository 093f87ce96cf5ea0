"""How elements get from process to process: messages, small ones, and those that travel meanwhile."""

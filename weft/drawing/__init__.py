"""Pictures of layouts and plans, in a terminal and in a notebook."""

"""Looking at layouts, plans and what moved."""

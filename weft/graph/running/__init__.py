"""A compiled graph at work: what it is given is checked, then it runs."""

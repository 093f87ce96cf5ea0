"""What a graph looks like and what it will cost, before it runs."""

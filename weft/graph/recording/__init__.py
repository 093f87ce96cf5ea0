"""Recording: the values, types and calls of a graph, and how they get into it."""

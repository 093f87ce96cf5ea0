"""Watching: what moves, what is said about it, and where in the user's program it was called."""

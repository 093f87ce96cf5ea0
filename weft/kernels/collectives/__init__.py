"""The collectives themselves: what a call of each checks, and the work that it launches."""

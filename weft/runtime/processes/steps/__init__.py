"""What one process does in each step of a plan."""

"""Who is there: signs of life, waiting for others, and errors that say who did not come."""

"""Do all processes do the same? What they compare, and what they tell each other."""

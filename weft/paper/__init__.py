"""A whole step on paper: what a program would hold, move and take on devices that nobody need have."""

"""Where an op runs once its layouts are chosen, and what repeats it."""

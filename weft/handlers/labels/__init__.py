"""Labels, which say by numbers which class something has: those that are no classes are refused."""

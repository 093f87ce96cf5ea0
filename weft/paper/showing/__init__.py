"""What a user gets of a step on paper: a report, its text, a page, a trace."""

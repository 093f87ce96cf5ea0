"""From a recorded graph to one flat function of plain torch calls."""

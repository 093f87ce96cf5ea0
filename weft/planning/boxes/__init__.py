"""Boxes of the index space: how dims are cut, how much each device holds, who sends which to whom."""

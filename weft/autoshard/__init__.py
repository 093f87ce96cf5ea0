"""Layouts for a whole program: recorded once, priced op by op, and chosen all at once.

    record ──► ways of each op ──► a problem ──► a solution within a limit ──► patterns

The door is `weft.nn.autoshard`.
"""

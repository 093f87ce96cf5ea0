"""Ops that leave rows where they are computed, or send each to where it is needed: lookups, additions, products by groups."""

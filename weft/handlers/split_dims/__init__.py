"""Ops along dims that are split, said so that little moves."""

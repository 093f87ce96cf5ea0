"""Ops that look over the border of what a device holds."""

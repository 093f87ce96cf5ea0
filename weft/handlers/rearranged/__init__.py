"""Ops whose every element is one element of a source, which may lie on another device."""

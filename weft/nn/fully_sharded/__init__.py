"""Fully sharded modules: parameters are whole only while they are needed."""

"""Checkpoints of others: PyTorch DCP folders, models of Transformers, whole files."""

"""Execution: a plan and plain torch tensors in, plain torch tensors out."""

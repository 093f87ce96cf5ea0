"""Ops on lists of tensors, and fused optimizer steps: one call for all pieces of all tensors."""

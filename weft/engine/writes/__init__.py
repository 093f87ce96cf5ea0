"""Writing to the memory of tensors."""

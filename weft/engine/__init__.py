"""The engine: one way through for every op on sharded tensors."""

"""Sharded tensors in programs that `torch.compile` makes: what it is told of them, and how they go in and come out."""

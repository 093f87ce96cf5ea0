"""What is told of calls after which tensors lie worse than they need to."""

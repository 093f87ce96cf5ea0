"""Moving values between layouts, and between plain and sharded tensors."""

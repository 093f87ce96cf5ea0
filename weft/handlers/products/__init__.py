"""Products that are more than a rule: whole ones, sums of products in letters, and those of tensors whose dims are merged."""

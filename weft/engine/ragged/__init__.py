"""Tensors whose rows lie where they were computed: how many a device has is known only at run time."""

"""The strides of results: those that plain torch gives them, on every device."""

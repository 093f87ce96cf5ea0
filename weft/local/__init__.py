"""`local_map`: plain torch code on the shards, device by device."""

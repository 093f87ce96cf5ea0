"""What a checkpoint is on disk: files with checked heads, an index, locks."""

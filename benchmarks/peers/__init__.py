"""What the peers do of the same work."""

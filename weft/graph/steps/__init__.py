"""Whole training steps: forward, backward and the optimizer as one object, and on one GPU as one launch."""

"""Pipelines at work: stages on meshes of their own, microbatches between them, in the order that a schedule says."""

"""Attention whose sequence or whose heads are split."""

"""Tests of weft.kernels."""

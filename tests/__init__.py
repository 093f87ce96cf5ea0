"""Tests of weft, in folders named by the part they test."""

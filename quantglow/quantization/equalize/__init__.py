"""Equivalent float graphs whose tensors use the 256 steps of int8 better."""

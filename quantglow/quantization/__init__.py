"""Quantization: a float graph and its profile to an int8 graph.  README.md has the guide."""

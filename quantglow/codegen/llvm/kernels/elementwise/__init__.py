"""Element-wise kernels, and look-up in tables."""

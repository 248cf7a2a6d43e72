"""Search for fast kernels, replayed on tables of measured ones."""

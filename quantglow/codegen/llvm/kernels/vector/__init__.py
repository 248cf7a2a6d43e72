"""Parts of kernels: operations on vectors, loops, functions."""

"""Convolution kernels; ``conv`` chooses among them."""

"""Kernels that move elements: ``copy`` (and fill), ``indexing``, ``resize``."""

"""Kernels that move elements: ``copy``, ``fill``, ``resize``, and ``indexing`` (gather, scatter,
top-k)."""

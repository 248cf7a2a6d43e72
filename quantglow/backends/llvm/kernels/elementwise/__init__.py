"""Element-wise kernels: ``elementwise`` and ``row_map`` for expressions (``row_invariants`` and
``row_values`` are their parts), ``quantized`` results, and look-up in a ``table``."""

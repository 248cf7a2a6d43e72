"""Transforms: every rewrite of a graph or a program.

``rewrite`` has rules and the loop that applies them, ``pass_manager`` runs passes in order and
records their work.  ``float`` optimizes float graphs, ``lowering`` turns operators into primitives,
``program`` turns primitives into instructions and shares their buffers, ``partition`` divides a
graph among backends, and ``split_batch`` makes the graph of a part of a batch.
"""

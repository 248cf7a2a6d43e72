"""Differential fuzzing: random ONNX graphs, and damaged model files.

``python -m tests.fuzz graphs --seeds 0:500`` and ``python -m tests.fuzz files --seeds 0:500``;
``--help`` lists the options.  A seed gives the same case on every machine.
"""

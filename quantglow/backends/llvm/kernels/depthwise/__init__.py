"""Depthwise convolution: one input channel for each output channel.

``integer_kernel`` and ``float_kernel`` are among the kernels that ``conv`` chooses from.

``plan`` cuts the work, ``constants`` packs weights, ``interleaved_rows`` prepares dot products.
"""

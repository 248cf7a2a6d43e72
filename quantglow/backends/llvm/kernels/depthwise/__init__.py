"""Depthwise convolution; ``depthwise`` chooses between ``integer_kernel`` and ``float_kernel``.

``plan`` cuts the work, ``constants`` packs weights, ``interleaved_rows`` prepares dot products.
"""

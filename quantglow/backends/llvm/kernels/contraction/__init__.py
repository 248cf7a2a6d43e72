"""Parts that convolutions and products share.

Register ``tiling``, the ``geometry`` of windows, ``packing`` of weights and ``weight_sums``; the
``epilogue`` that turns sums into results: its ``activation``, ``residual``, the proof of
``overflow``, and ``results``, which are rounded and packed in ``channel_order``.
"""

"""Parts that convolutions and products share.

``dot`` products, register ``tiling``, the ``epilogue`` that turns sums into results, the
``geometry`` of windows, ``packing`` of weights, ``weight_sums``, and the ``channel_order`` of
packed sums.
"""

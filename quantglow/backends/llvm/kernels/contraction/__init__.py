"""Parts that convolutions and products share.

``dot`` products, register ``tiling``, the ``epilogue`` that turns sums into results, the
``geometry`` of windows, ``packing`` of weights and ``weight_sums``.
"""

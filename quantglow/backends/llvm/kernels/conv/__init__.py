"""Convolution kernels; ``conv`` chooses among them.

``implicit_gemm`` is the general one, ``gathered_rows`` serves few channels, ``pair_sums`` weights
whose sums of two products fit 16 bits, ``split_vectors`` one and a half vectors of channels,
``matrix_tiles`` processors with matrix instructions.  ``plan`` cuts the work into tiles, ``loops``
walks them.
"""

"""Choice of the dot product of a convolution, by what its weights allow."""

from __future__ import annotations

from quantglow.backends.llvm.isa.dot import DotProduct
from quantglow.backends.llvm.isa.target import Target
from quantglow.graph.node import Constant
from quantglow.ops import Conv
from quantglow.types import DType


def dot_of(conv: Conv, dtype: DType, target: Target) -> DotProduct:
    """The dot product of activations, stored as ``dtype``, with the weights of ``conv``.

    quantglow's own quantization makes no weight of -128.
    """
    symmetric = target.isa.symmetric_product(dtype, target.core)
    if symmetric is None:
        return target.dot_product(dtype)
    assert isinstance(conv.w, Constant)
    is_symmetric = int(conv.w.value.min(initial=0)) > -128
    return symmetric if is_symmetric else target.dot_product(dtype)

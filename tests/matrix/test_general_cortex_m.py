"""Free sizes in kernels of Cortex-M, whose offsets have 32 bits: indices of a model keep 64, and
functions may stand before a kernel.  Products of bytes have tiles of few rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest

from quantglow.ir.types import DType
from tests.matrix import test_general_depthwise as depthwise
from tests.matrix import test_general_indexing as indexing
from tests.matrix import test_general_matmul as matmul
from tests.matrix.general import Make, Sizes, assert_serves
from tests.matrix.plain_ir.translation import plain

CASES = {
    "depthwise": (
        depthwise.depthwise(DType.I8, *depthwise.CASES[0]),
        depthwise.HINT,
        depthwise.OTHERS,
    ),
    "residuals": (
        depthwise.depthwise(DType.I8, *depthwise.CASES[4], residual=True),
        depthwise.HINT,
        depthwise.OTHERS,
    ),
    "indexing": (indexing.embedding, indexing.HINT, indexing.OTHERS),
    "products": (
        partial(matmul.product, "scores", DType.I8, DType.I8),
        matmul.SMALL,
        matmul.SMALLER,
    ),
}


@pytest.mark.slow_variants(2)
@pytest.mark.parametrize("level", ["cortex-m0plus", "cortex-m4", "cortex-m55"])
@pytest.mark.parametrize(("make", "hint", "others"), CASES.values(), ids=CASES)
def test_one_program_serves_all_sizes(
    make: Make, hint: Sizes, others: Sequence[Sizes], level: str
) -> None:
    assert_serves(make, hint, others, plain(level))

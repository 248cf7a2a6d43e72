"""Sums over weights are exact, however large the tensor."""

from __future__ import annotations

import numpy as np
import pytest

from quantglow.codegen.llvm.kernels.contraction import results as weight_sums
from quantglow.codegen.llvm.kernels.contraction.results import channel_sums


@pytest.mark.parametrize("dtype", [np.int8, np.int16])
@pytest.mark.parametrize("shape", [(3, 3, 5, 7), (1, 1, 40, 3), (1, 1, 1, 1), (2, 2, 0, 4)])
@pytest.mark.parametrize("chunk", [1, 20, 2**17])
def test_sums_by_chunks_are_the_sums(
    dtype: type, shape: tuple[int, ...], chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_sums, "CHUNK_ELEMENTS", chunk)
    limits = np.iinfo(dtype)
    w = np.random.default_rng(0).integers(limits.min, limits.max, shape, dtype, endpoint=True)
    wide = w.astype(np.int64)
    np.testing.assert_array_equal(channel_sums(w), wide.sum(axis=(0, 1, 2)))
    np.testing.assert_array_equal(channel_sums(w, True), np.abs(wide).sum(axis=(0, 1, 2)))

"""Packed int8 weights take a byte each where loads widen them."""

from __future__ import annotations

import numpy as np
import pytest

from quantglow.backends.llvm.aot.weights import Placement, weights_of
from quantglow.backends.llvm.isa.costs import Core
from quantglow.backends.llvm.targets import level_target
from quantglow.runtime.bundles import emitted
from quantglow.types import DType
from tests.support.pinned import pinned

LEVELS = ("rv64gc", "rv64gcv", "wasm32")
MOST = 1.3
"""Bytes over those of a level whose products take bytes: panels are wider."""


@pytest.mark.parametrize("level", LEVELS)
def test_packed_weights_are_bytes(level: str) -> None:
    isa = level_target(level).isa
    dot = isa.dot_product(DType.I8, Core())
    quads = np.arange(-128, 128, dtype=np.int8)[: isa.vector_nbytes].reshape(-1, 4)
    packed = dot.pack(quads)
    assert packed.dtype == np.int8 and packed.nbytes == dot.weight_nbytes == quads.nbytes


@pytest.mark.parametrize("level", LEVELS)
def test_a_bundle_has_weights_as_small_as_bytes(level: str) -> None:
    graph = pinned("residual")
    found, bytewise = (
        weights_of([emitted(graph, name)], Placement.OBJECT)[0].nbytes
        for name in (level, "dotprod")
    )
    assert found <= MOST * bytewise

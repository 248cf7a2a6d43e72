"""Laws of products of free sizes, for the kernels of every level: code is made, and not run."""

from __future__ import annotations

import pytest

from quantglow.codegen.llvm.isa.target import Target
from quantglow.codegen.llvm.kernels import emit
from quantglow.codegen.llvm.targets import LEVELS, level_target
from quantglow.ir.program.program import Compute
from quantglow.ir.symbolic.guards import Guards
from quantglow.ir.symbolic.size import symbols
from quantglow.ir.types import DType
from tests.matrix.harness import planned
from tests.matrix.test_general_matmul import KINDS, TYPES, product

HINTS = (5, 6, 7, 11, 13, 23)
"""Sizes at which code is made.  Depths below 4 are not free."""
BATCH = 3


def guards_of(
    kind: str, dtype: DType, result: DType | None, hint: int, target: Target
) -> tuple[Guards, list[str]]:
    """The guards of a product made at a hint, and the texts of its kernels."""
    sizes, guards = symbols({"N": BATCH, "T": hint})
    graph = product(kind, dtype, result, sizes)
    program, _ = planned(graph, target.isa.unsigned_activations)
    steps = (step for step in program.instructions if isinstance(step, Compute))
    return guards, [emit(step, target).ir for step in steps]


@pytest.mark.parametrize(("dtype", "result"), TYPES)
@pytest.mark.parametrize("level", LEVELS)
def test_a_product_serves_all_sizes_from_the_power_of_two_within_its_hint_on(
    level: str, dtype: DType, result: DType | None
) -> None:
    """Each size that it does not serve takes another program: a tile of five rows, chosen at a
    hint of seven, would leave out four."""
    refused = []
    for kind in KINDS:
        for hint in HINTS:
            guards, texts = guards_of(kind, dtype, result, hint, level_target(level))
            assert all(texts)
            least = 1 << (hint.bit_length() - 1)
            if not all(guards.hold({"N": BATCH, "T": t}) for t in range(least, hint + 1)):
                refused.append((kind, hint, guards.texts))
    assert refused == []

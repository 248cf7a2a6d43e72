"""RISC-V and WebAssembly: processors for which code is only generated."""

from __future__ import annotations

import re

import pytest

from quantglow.codegen.llvm.compiler import assembly
from quantglow.codegen.llvm.emission import emit_program
from quantglow.codegen.llvm.isa.riscv import FAMILY as RISCV
from quantglow.codegen.llvm.isa.target import Host
from quantglow.codegen.llvm.isa.wasm import FAMILY as WASM
from quantglow.codegen.llvm.targets import level_target, resolve
from quantglow.support.errors import BackendError
from tests.matrix.harness import planned
from tests.support.pinned import pinned
from tests.unit.codegen.test_aarch64 import instructions

INT8 = "pyramid"
"""A network of integers."""

SELECTED = {
    "rv64gcv": {"vwmacc.vx", "vsext.vf2", "vnclip.wi", "vfcvt.x.f.v"},
    "rv64gc": {"mul", "fcvt.w.s"},
    "wasm32": {"i32x4.dot_i16x8_s", "i8x16.narrow_i16x8_s", "f32x4.nearest"},
}
FUSED = re.compile(r"v?fn?m(add|acc|sub)|.*relaxed")
ROUNDING_CHANGED = "fsrm"


@pytest.fixture(scope="module", params=SELECTED)
def level(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def kernels(level: str) -> dict[str, str]:
    """Assembly of the kernels of a network of integers, by their text."""
    target = level_target(level)
    program = emit_program(*planned(pinned(INT8), unsigned=False), target)
    return {text: assembly(target, text) for text in program.texts}


@pytest.mark.slow_variants
def test_integers_are_computed_by_the_instructions_of_a_level(
    level: str, kernels: dict[str, str]
) -> None:
    assert SELECTED[level] <= set().union(*map(instructions, kernels.values()))


def test_products_and_sums_of_floats_are_fused_only_where_kernels_say_so(
    kernels: dict[str, str],
) -> None:
    plain = [value for text, value in kernels.items() if "llvm.fma" not in text]
    assert plain and not [name for f in plain for name in instructions(f) if FUSED.match(name)]


def test_kernels_call_nobody_and_leave_the_rounding_mode(kernels: dict[str, str]) -> None:
    actual = set().union(*map(instructions, kernels.values()))
    assert not [name for name in actual if name == "call" or name.startswith(ROUNDING_CHANGED)]


def test_scalar_code_has_no_vectors(level: str, kernels: dict[str, str]) -> None:
    actual = set().union(*map(instructions, kernels.values()))
    assert level != "rv64gc" or not [name for name in actual if name.startswith("v")]


@pytest.mark.parametrize(
    ("host", "family"),
    [
        (Host("riscv64-unknown-linux-gnu", "generic-rv64", "+v"), RISCV),
        (Host("wasm32-unknown-emscripten", "generic", "+simd128"), WASM),
    ],
)
def test_levels_are_refused_with_a_reason_even_where_they_belong(host: Host, family) -> None:
    assert all("bundle" in family.obstacle(level, host) for level in family.levels)


def test_levels_do_not_run_in_this_process(level: str) -> None:
    with pytest.raises(BackendError, match=f"{level}.* does not run here"):
        resolve(level)

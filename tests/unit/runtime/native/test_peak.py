"""The measured peak: kernels that LLVM may not shorten, on every level that runs here."""

from __future__ import annotations

import llvmlite.binding as llvm
import pytest

from quantglow.codegen.llvm.compiler import target_machine
from quantglow.codegen.llvm.targets import LEVELS, level_target, resolve, runs_here
from quantglow.ir.types import DType
from quantglow.runtime.native import peak


def assembly(level: str, dtype: DType) -> tuple[int, str]:
    """Sums in registers, and the code that adds to them."""
    target = level_target(level)
    kernel = peak.ProductKernel(target, target.dot_product(dtype))
    module = llvm.parse_assembly(kernel.text())
    return kernel.sums, target_machine(target).emit_assembly(module)


@pytest.mark.parametrize(
    ("level", "dtype", "instruction"),
    [
        ("avx512vnni", DType.U8, "vpdpbusd"),
        ("avxvnni", DType.U8, "vpdpbusd"),
        ("avx512vnni", DType.I16, "vpdpwssd"),
        ("avxvnni", DType.I16, "vpdpwssd"),
        ("avx512vnni", DType.F32, "vfmadd"),
        ("avx2", DType.F32, "vfmadd"),
        ("x86-64", DType.F32, "mulps"),
    ],
)
def test_every_product_stays_and_no_sum_is_spilled(
    level: str, dtype: DType, instruction: str
) -> None:
    sums, text = assembly(level, dtype)
    assert text.count(instruction) == sums
    assert "(%rsp)" not in text


def test_matrix_registers_have_independent_sums() -> None:
    target = level_target("amx-int8")
    assert target.isa.tiles is not None
    kernel = peak.TileKernel(target, target.isa.tiles)
    text = target_machine(target).emit_assembly(llvm.parse_assembly(kernel.text()))
    assert text.count("tdpbusd") == kernel.sums
    assert kernel.macs == peak.ROUNDS * 4 * 16 * 16 * 64


def test_every_level_has_positive_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peak, "SECONDS", 0.0)
    monkeypatch.setattr(peak, "REPEATS", 1)
    monkeypatch.setattr(peak, "MEMORY_NBYTES", 2**20)
    for level in filter(runs_here, LEVELS):
        actual = peak.measure_peak(resolve(level), threads=2)
        rates = (actual.integer_macs, actual.float_macs, actual.cached_nbytes, actual.memory_nbytes)
        assert min(rates) > 0

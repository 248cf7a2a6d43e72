"""Sizes and undefined symbols of objects, in every format that LLVM writes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quantglow.codegen.llvm.isa.target import Target
from quantglow.codegen.llvm.targets import level_target
from quantglow.export.bundle.object_tables import object_facts, object_file

TEXT = """
declare float @llvm.sin.f32(float)
@constants = constant [1000 x i8] zeroinitializer

define float @sine(float %x) nounwind {
  %y = call float @llvm.sin.f32(float %x)
  ret float %y
}

define float @rest_of_a_division(float %x) nounwind {
  %y = frem float %x, 3.0
  ret float %y
}
"""

TRIPLES = (
    "x86_64-unknown-linux-gnu",
    "i386-unknown-linux-gnu",
    "aarch64-unknown-linux-gnu",
    "armv7em-none-eabi",
    "riscv64-unknown-linux-gnu",
    "powerpc64-unknown-linux-gnu",
    "arm64-apple-macosx11",
    "x86_64-pc-windows-gnu",
    "wasm32-unknown-unknown",
)


def target(triple: str) -> Target:
    return replace(level_target("portable"), triple=triple, cpu="", features="")


@pytest.mark.slow_variants
@pytest.mark.parametrize("triple", TRIPLES)
def test_undefined_symbols_are_those_of_libraries(triple: str) -> None:
    built = target(triple)
    code = object_file(built, [TEXT], ["sine", "rest_of_a_division"]).code
    actual = object_facts(code, built.object_format)
    assert actual.undefined == ("fmodf", "sinf")
    assert 1000 < actual.loaded_nbytes < 1400


def test_windows_asks_for_its_float_marker() -> None:
    built = target("x86_64-pc-windows-msvc")
    actual = object_facts(object_file(built, [TEXT], ["sine"]).code, built.object_format)
    assert "_fltused" in actual.undefined

"""The first lines of a room name every module in it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import quantglow

PACKAGE = Path(quantglow.__file__).parent
GUIDED = (
    "backends/llvm",
    "backends/llvm/isa",
    "backends/llvm/isa/x86",
    "backends/llvm/jit",
    "backends/llvm/kernels/contraction",
    "backends/llvm/kernels/conv",
    "backends/llvm/kernels/data_movement",
    "backends/llvm/kernels/depthwise",
    "backends/llvm/kernels/elementwise",
    "backends/llvm/kernels/matmul",
    "backends/llvm/kernels/reduce",
    "backends/llvm/kernels/vector",
    "backends/llvm/runtime",
    "cli",
    "driver",
    "driver/pipeline",
    "frontend",
    "graph",
    "instr",
    "memory",
    "report",
    "quantization/accuracy_control",
    "quantization/convert",
    "quantization/decisions",
    "quantization/equalize",
    "quantization/plan",
    "quantization/search",
    "report",
    "runtime",
)


@pytest.mark.parametrize("room", GUIDED)
def test_the_guide_of_a_room_names_its_modules(room: str) -> None:
    folder = PACKAGE / room
    guide = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    rooms = {path.parent.name for path in folder.glob("*/__init__.py")}
    assert [name for name in sorted(modules | rooms) if f"``{name}``" not in guide] == []

"""Kernels of floats take little flash on processors whose lanes are instructions of their own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from quantglow.codegen.llvm.isa.target import ObjectFormat
from quantglow.export.bundle.exporter import emit
from quantglow.export.bundle.object_tables import object_facts
from quantglow.export.bundle.program_object import program_object
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input, Node
from quantglow.ir.ops import Add, Erf, LayerNormalization, LogSoftmax, Pow, Sigmoid, Softmax
from quantglow.ir.types import f32

LEVELS = ("cortex-m0plus", "cortex-m4", "cortex-m7", "cortex-m33")
LIMIT_NBYTES = 4096
"""Bytes of a program with one operator: its kernels, two functions that run them, and its facts."""


def constant(name: str, *shape: int) -> Constant:
    return Constant(name=name, value=np.ones(shape, np.float32))


def layer_normalization(x: Node) -> Node:
    return LayerNormalization(name="y", x=x, gamma=constant("g", 63), beta=constant("b", 63))


OPERATORS: dict[str, Callable[[Node], Node]] = {
    "layer": layer_normalization,
    "softmax": lambda x: Softmax(name="y", x=x),
    "logarithm": lambda x: LogSoftmax(name="y", x=x),
    "rows": lambda x: Add(name="y", x=x, y=constant("s", 63)),
    "columns": lambda x: Add(name="y", x=x, y=constant("s", 1, 40, 1)),
    "erf": lambda x: Erf(name="y", x=x),
    "sigmoid": lambda x: Sigmoid(name="y", x=x),
    "pow": lambda x: Pow(name="y", x=x, y=constant("s", 63)),
}


@pytest.mark.slow_variants
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", OPERATORS)
def test_a_kernel_of_floats_is_not_unrolled(name: str, level: str) -> None:
    x = Input(name="x", tensor=f32(1, 40, 63))
    program = emit(Graph((x,), (("y", OPERATORS[name](x)),)), level)
    object_file = program_object("net", program)
    loaded = object_facts(object_file.code, ObjectFormat.ELF).loaded_nbytes
    assert loaded - object_file.weights.nbytes < LIMIT_NBYTES

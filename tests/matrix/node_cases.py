"""The ONNX project's own test cases of single operators."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.case import node
from onnx.backend.test.case.test_case import TestCase

from quantglow.importer.onnx import import_model
from quantglow.importer.onnx.reading.proto import OLDEST_OPSET
from quantglow.ir.graph.graph import Graph
from quantglow.support.arrays import Array
from quantglow.support.errors import UnsupportedOpError

LOW_PRECISION = {"float16": 2e-3, "bfloat16": 2e-2}
"""Relative error of results in these types: we compute in float32."""


@dataclass(frozen=True)
class Case:
    """A model of one operator, its inputs, and the expected outputs."""

    name: str
    model: onnx.ModelProto
    inputs: Sequence[Array]
    outputs: Sequence[Array]

    def __str__(self) -> str:
        return self.name

    def matches(self, patterns: Sequence[str]) -> bool:
        """Whether a regular expression matches the name."""
        return any(re.search(pattern, self.name) for pattern in patterns)

    def graph(self) -> Graph:
        """The imported model; operands that must be constant, such as axes, become initializers."""
        known: set[str] = set()
        while True:
            try:
                return import_model(self.with_known(known))
            except UnsupportedOpError as refusal:
                named = re.findall(r"'([^' ]*)' is computed at run time", str(refusal))
                inputs = {value.name for value in self.model.graph.input}
                if not inputs.intersection(named) - known:
                    raise
                known |= inputs.intersection(named)

    def with_known(self, names: set[str]) -> onnx.ModelProto:
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        for value, array in zip(model.graph.input, self.inputs, strict=True):
            if value.name in names:
                model.graph.initializer.append(numpy_helper.from_array(array, value.name))
        return model

    def feeds(self, graph: Graph) -> dict[str, Array]:
        types = {node.name: node.type.dtype.numpy for node in graph.inputs}
        arrays = zip(self.model.graph.input, self.inputs, strict=True)
        return {v.name: a.astype(types[v.name]) for v, a in arrays if v.name in types}

    def check(self, actual: Sequence[Array]) -> None:
        """Raise ``AssertionError`` unless ``actual`` are the expected outputs."""
        for got, want in zip(actual, self.outputs, strict=True):
            rtol = LOW_PRECISION.get(want.dtype.name, 1e-4)
            if got.dtype == np.float32:
                want = want.astype(np.float32)
                np.testing.assert_allclose(got, want, rtol=rtol, atol=max(rtol / 10, 1e-6))
            else:
                np.testing.assert_array_equal(got, want, strict=True)


def node_cases(op_type: str) -> list[Case]:
    """The cases of an operator alone, in ONNX's own domain, whose tensors a graph holds."""
    alone = [case for case in build_cases() if [n.op_type for n in nodes_of(case)] == [op_type]]
    return [Case(case.name, case.model, *arrays_of(case)) for case in alone if is_held(case)]


def nodes_of(case: TestCase) -> Sequence[onnx.NodeProto]:
    return case.model.graph.node


@cache
def build_cases() -> list[TestCase]:
    """The cases that ONNX makes, without pools over windows, which it sums in Python for
    seconds.
    """
    left_out = [f"{node.__name__}.{name}" for name in ("averagepool", "maxpool")]
    stand_ins = {name: ModuleType(name) for name in left_out if name not in sys.modules}
    sys.modules.update(stand_ins)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = list(node.collect_testcases(None))
    for name in stand_ins:
        del sys.modules[name]
    return cases


def arrays_of(case: TestCase) -> tuple[list[Array], list[Array]]:
    """Inputs and outputs of a case."""
    inputs, outputs = case.data_sets[0]
    return [*map(np.asarray, inputs)], [*map(np.asarray, outputs)]


def is_held(case: TestCase) -> bool:
    """Whether a graph holds the tensors of a case of a supported opset."""
    if nodes_of(case)[0].domain or case.model.opset_import[0].version < OLDEST_OPSET:
        return False
    inputs, outputs = arrays_of(case)
    return all(map(is_tensor, [*inputs, *outputs]))


def is_tensor(array: Array) -> bool:
    """Whether the graph has the element type (floats as float32) and an element at all."""
    held = "float16 bfloat16 float32 float64 bool int8 uint8 int16 int32 int64"
    return array.dtype.name in held.split() and array.size > 0

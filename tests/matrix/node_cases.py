"""The ONNX project's own test cases of single operators."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.case.node import collect_testcases

from quantglow.errors import UnsupportedOpError
from quantglow.frontend import import_model
from quantglow.frontend.proto import OLDEST_OPSET
from quantglow.graph.graph import Graph
from quantglow.types import Array

LOW_PRECISION = {"float16": 2e-3, "bfloat16": 2e-2}
"""Relative error of results in these types: we compute in float32."""


@dataclass(frozen=True)
class Case:
    """A model of one operator, its inputs, and what it must give."""

    name: str
    model: onnx.ModelProto
    inputs: Sequence[Array]
    outputs: Sequence[Array]

    def __str__(self) -> str:
        return self.name

    def graph(self) -> Graph:
        """The imported model; operands that must be known, as axes, become initializers."""
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

    def check(self, found: Sequence[Array]) -> None:
        """Raise ``AssertionError`` unless ``found`` are the expected outputs."""
        for got, want in zip(found, self.outputs, strict=True):
            rtol = LOW_PRECISION.get(want.dtype.name, 1e-4)
            if got.dtype == np.float32:
                want = want.astype(np.float32)
                np.testing.assert_allclose(got, want, rtol=rtol, atol=max(rtol / 10, 1e-6))
            else:
                np.testing.assert_array_equal(got, want, strict=True)


def node_cases(op_types: Sequence[str], left_out: Sequence[str] = ()) -> Iterator[Case]:
    """The cases of the operators whose tensors we hold; none whose name ``left_out`` matches."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = collect_testcases(None)
    for case in cases:
        (*nodes,) = case.model.graph.node
        if len(nodes) != 1 or nodes[0].op_type not in op_types or nodes[0].domain:
            continue
        if case.model.opset_import[0].version < OLDEST_OPSET:
            continue
        inputs, outputs = ([*map(np.asarray, arrays)] for arrays in case.data_sets[0])
        if all(map(_is_held, [*inputs, *outputs])) and not any(
            re.search(pattern, case.name) for pattern in left_out
        ):
            yield Case(case.name, case.model, inputs, outputs)


def _is_held(array: Array) -> bool:
    """Whether the graph has the element type (floats as float32) and an element at all."""
    held = "float16 bfloat16 float32 float64 bool int8 uint8 int16 int32 int64"
    return array.dtype.name in held.split() and array.size > 0

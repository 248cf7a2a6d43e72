"""The ONNX project's cases with a free batch: calls that a queue joins get what each gets alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import quantglow as qg
from quantglow.support.arrays import Array
from quantglow.support.errors import QuantglowError
from tests.matrix import node_cases
from tests.support.free_dimensions import RESIZES, freed, resized

NAMES = """
Add ArgMax Concat CumSum Einsum Expand Flatten Gather GlobalAveragePool InstanceNormalization
LayerNormalization LogSoftmax MatMul Mean Pad ReduceMax ReduceMean Reshape Resize ReverseSequence
ScatterElements Shape Slice Softmax Split Squeeze Tile TopK Transpose Trilu Unsqueeze Where
"""
QUICK = {"Flatten", "MatMul", "ReduceMax", "Reshape", "Softmax", "Transpose"}
CALLS = 6


@pytest.mark.slow_variants
@pytest.mark.parametrize(
    "operator",
    [pytest.param(o, marks=[] if o in QUICK else [pytest.mark.slow]) for o in NAMES.split()],
)
def test_joined_calls_get_what_each_gets_alone(operator: str) -> None:
    """At the shapes of the case, and at others, at which samples may depend on each other."""
    for case in node_cases.node_cases(operator):
        try:
            compiled: Any = qg.compile(freed(case.model, are_shared=False), num_threads=1)
        except QuantglowError:
            continue
        names = [value.name for value in case.model.graph.input]
        arrays = dict(zip(names, case.inputs, strict=True))
        for resize in RESIZES[:3]:
            calls = list(drawn_calls({n: resized(a, resize) for n, a in arrays.items()}))
            try:
                expected = [compiled.run(None, feeds) for feeds in calls]
            except QuantglowError:
                continue
            assert_joined(compiled, calls, expected)


def drawn_calls(feeds: dict[str, Array]) -> Any:
    """Feeds of the same shapes; values of single samples that differ from call to call."""
    for shift in range(CALLS):
        yield {name: np.roll(array, shift) for name, array in feeds.items()}


def assert_joined(compiled: Any, calls: list[dict[str, Array]], expected: list[Any]) -> None:
    most = 4 * max(len(a) if a.ndim else 1 for a in calls[0].values())
    try:
        queue = qg.InferQueue(compiled, 1, max_batch=most, max_delay=0.02)
    except qg.OptionError:
        return  # calls of this model are never joined
    with queue:
        for _ in range(2):
            for future, reference in zip(map(queue.submit, calls), expected, strict=True):
                for value, item in zip(future.result(60), reference, strict=True):
                    np.testing.assert_allclose(value, item, rtol=1e-5, atol=1e-5, strict=True)

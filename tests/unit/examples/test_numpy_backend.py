"""The example of a code generator outside the package does what its README says."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

import quantglow as qg
from tests.support.examples import (
    BATCHES,
    assert_equal_outputs,
    count_lines,
    int8_graph,
    load_example,
)
from tests.support.small_network import small_model, small_samples


@pytest.fixture(scope="module")
def example() -> ModuleType:
    return load_example("numpy_backend")


def test_the_example_is_short() -> None:
    assert count_lines("numpy_backend") < 150


def test_it_takes_matrix_products_and_leaves_the_rest(example: ModuleType) -> None:
    compiled = qg.compile(example.perceptron(), backends=[example.NumpyBackend()])
    owners = {n.name: s.backend.name for s in compiled.build.segments for n in s.nodes}
    assert {name for name, owner in owners.items() if owner == "numpy"} == {"active", "scores", "y"}
    assert set(owners.values()) == {"numpy", "llvm"}


def test_the_result_is_that_of_the_graph(example: ModuleType) -> None:
    graph = example.perceptron()
    x = np.random.default_rng(0).standard_normal((32, 256)).astype(np.float32)
    compiled = qg.compile(graph, backends=[example.NumpyBackend()])(x)
    np.testing.assert_allclose(compiled, qg.interpret(graph, {"x": x})[0], rtol=1e-4, atol=1e-5)


def test_it_works_in_a_network_from_onnx(example: ModuleType) -> None:
    x = small_samples(1)[0]
    compiled = qg.compile(small_model(), backends=[example.NumpyBackend()])(x)
    for mine, expected in zip(compiled, qg.compile(small_model())(x), strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-4, atol=1e-5)


def test_quantized_products_are_those_of_quantglow(example: ModuleType) -> None:
    int8 = qg.quantize_and_compile(small_model(), small_samples(), verify=False)
    compiled = qg.compile(int8.graph, backends=[example.NumpyBackend()])
    for x in small_samples(2):
        for mine, expected in zip(compiled(x), int8(x), strict=True):
            np.testing.assert_array_equal(mine, expected)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(("name", "batch"), BATCHES)
def test_quantized_networks_are_those_of_the_interpreter(
    example: ModuleType, name: str, batch: int, threads: int
) -> None:
    graph, backends = int8_graph(name, batch), [example.NumpyBackend()]
    model = qg.compile(graph, num_threads=threads, backends=backends)
    assert_equal_outputs(model, name, batch)
    owners = {n.op: s.backend.name for s in model.build.segments for n in s.nodes}
    assert owners["Gemm"] == "numpy"

"""The embedded networks, from ONNX to machine code: accuracy, exactness, and the demo itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import quantglow as qg
from quantglow.cli import demo
from quantglow.cli.demo import EXAMPLES, Example
from quantglow.codegen.llvm.targets import LEVELS, runs_here

TESTED = 100
"""Number of labelled images of each network in these tests."""

MAKERS = {make.__name__: make for make in EXAMPLES}
LARGER = pytest.param("ocr_direction", marks=pytest.mark.slow)
FLOAT_ACCURACY = {"mnist": 0.97, "ocr_direction": 0.97}
INT8_SQNR_DB = {"mnist": 30.0, "ocr_direction": 25.0}


@pytest.fixture(scope="module", params=["mnist", LARGER])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def example(name: str) -> Example:
    return MAKERS[name]()


@pytest.fixture(scope="module")
def int8(example: Example) -> qg.CompiledModel:
    samples = list(example.calibration[:16, None])
    return qg.quantize_and_compile(
        example.model, samples, num_threads=1, input_shapes=shapes_of(example)
    )


def shapes_of(example: Example) -> dict[str, tuple[int, ...]]:
    return {example.input_name: (1, *example.images.shape[1:])}


def accuracy(compiled: Any, example: Example) -> float:
    actual = [compiled(x[None]).argmax() for x in example.images[:TESTED]]
    return float(np.mean(actual == example.labels[:TESTED]))


@pytest.mark.parametrize("threads", [1, 2])
def test_float_machine_code_keeps_the_accuracy(name: str, example: Example, threads: int) -> None:
    compiled = qg.compile(example.model, num_threads=threads, input_shapes=shapes_of(example))
    assert accuracy(compiled, example) >= FLOAT_ACCURACY[name]


def test_int8_loses_at_most_two_images(name: str, example: Example, int8: Any) -> None:
    assert accuracy(int8, example) >= FLOAT_ACCURACY[name] - 2 / TESTED


def test_int8_has_the_stated_sqnr(name: str, int8: Any) -> None:
    assert int8.report.outputs[0].sqnr_db >= INT8_SQNR_DB[name]


def test_every_layer_before_the_tail_is_int8(int8: Any) -> None:
    reasons = {layer.reason for layer in int8.report.layers if layer.precision == "float"}
    assert reasons <= {"finishes the output in float"}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("target", ["native", *filter(runs_here, LEVELS)])
def test_machine_code_gives_the_integers_of_the_interpreter(
    example: Example, int8: Any, target: str, threads: int
) -> None:
    graph = before_the_tail(int8.graph)
    compiled = qg.compile(graph, target=target, num_threads=threads)
    for image in example.images[:3]:
        feeds = {example.input_name: image[None]}
        np.testing.assert_array_equal(compiled.run(None, feeds)[0], qg.interpret(graph, feeds)[0])


def before_the_tail(graph: qg.Graph) -> qg.Graph:
    """The graph up to its last matrix product: transcendental functions agree only nearly."""
    ends = [n for n in graph.nodes if n.op in ("Gemm", "Conv")]
    return qg.Graph(graph.inputs, (("end", ends[-1]),), graph.source_hash)


def test_a_saved_model_loads_equal(example: Example, int8: Any, tmp_path: Path) -> None:
    int8.save(tmp_path / "model.qgm")
    loaded = qg.load(tmp_path / "model.qgm", num_threads=2)
    for image in example.images[:5]:
        np.testing.assert_array_equal(loaded(image[None]), int8(image[None]))


@pytest.mark.parametrize("name", ["mnist", LARGER])
def test_the_demo_compares_four_runtimes(name: str) -> None:
    example = MAKERS[name]()
    small = Example(
        example.title,
        example.model,
        example.input_name,
        example.images[:20],
        example.labels[:20],
        example.calibration[:8],
    )
    runners, report = demo.prepare(small, 1)
    table = demo.results_table(small, runners, 1, seconds=0.05)
    assert [row[0] for row in table.rows] == list(runners)
    Console(quiet=True).print(table.rich(), demo.stages_table(report).rich())

"""The table of first calls at new shapes, and the shapes that are drawn."""

from __future__ import annotations

import argparse

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from benchmarks.latency import shapes
from benchmarks.latency.shapes import Row, verdict
from benchmarks.latency.shapes_process import Timing
from benchmarks.networks import free_networks
from benchmarks.networks.free_networks import NETWORKS, drawn
from benchmarks.support.free_models import MAKERS
from benchmarks.support.runtime import PRECISIONS


def timing(*first: float, load: float = 0.0) -> Timing:
    """A process whose second calls take 10 ms each."""
    return Timing(load, list(first), [0.01] * len(first), [10**6 * n for n in range(len(first))])


def row(runtime: str, *first: float, load: float = 0.0) -> Row:
    return Row("net", runtime, timing(*first, load=load))


def test_each_shape_is_drawn_once_in_an_order_that_repeats() -> None:
    ranges = (range(1, 5), range(32, 321, 32))
    actual = drawn(ranges, 1000)
    assert sorted(actual) == [(a, b) for a in ranges[0] for b in ranges[1]]
    assert actual != sorted(actual)
    assert drawn(ranges, 7) == actual[:7]


@pytest.mark.parametrize("network", NETWORKS.values(), ids=lambda network: network.name)
def test_inputs_have_the_free_sizes(network: free_networks.FreeNetwork) -> None:
    rng = np.random.default_rng(0)
    for sizes in drawn(network.ranges, 3):
        assert all(size in sides for size, sides in zip(sizes, network.ranges, strict=True))
        dims = [dim for array in network.feeds(sizes, rng).values() for dim in array.shape]
        assert set(sizes) <= set(dims)


def test_a_free_batch_is_a_symbol_of_inputs_and_outputs() -> None:
    make = helper.make_tensor_value_info
    x, y = (make(name, TensorProto.FLOAT, [1, 3]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    model = free_networks.free_batch(helper.make_model(graph))
    onnx.checker.check_model(model, full_check=True)
    for value in (*model.graph.input, *model.graph.output):
        assert [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim] == [
            "batch",
            3,
        ]


def test_a_row_leaves_the_shapes_that_compile_out_of_new_ones() -> None:
    cells = row("quantglow int8", 3.0, 2.0, 0.011, 0.012, 0.02, load=0.5).line().split(" | ")
    actual = dict(zip(shapes.COLUMNS, (cell.strip("| ") for cell in cells), strict=True))
    assert (actual["load s"], actual["all shapes s"], actual["first two s"]) == (
        "0.50",
        "5.04",
        "5.00",
    )
    assert (actual["new shape ms"], actual["worst ms"], actual["again ms"]) == (
        "2.00",
        "10.0",
        "10.0",
    )
    assert actual["grown MB"] == "2"


def test_a_verdict_names_the_fastest_peer() -> None:
    rows = [
        row("quantglow float", 0.5),
        row("quantglow int8", 2.0, load=2.0),
        row("onnxruntime int8", 6.0),
        row("openvino int8", 4.0, load=2.0),
    ]
    assert verdict("net", rows) == "- net: 2.00 of openvino int8 (1.50 with loading)"


def test_a_verdict_has_the_fastest_peer_in_int8_beside_a_faster_one_in_float() -> None:
    rows = [row("quantglow int8", 1.0), row("onnxruntime int8", 3.0), row("openvino float", 2.0)]
    assert verdict("net", rows).startswith("- net: 2.00 of openvino float")
    assert verdict("net", rows).endswith("; 3.00 of onnxruntime int8 (3.00 with loading)")


def test_a_runtime_without_figures_is_left_out_of_the_verdict() -> None:
    missing = Row("net", "openvino int8", error="not installed", is_missing=True)
    assert missing.line() == "| net | openvino int8 | not installed |"
    assert verdict("net", [row("quantglow int8", 1.0), missing]) == "- net: nothing to compare"


def test_every_runtime_has_a_model_in_every_precision() -> None:
    names = [f"{name} {p}" for p in PRECISIONS for name in (shapes.OURS, *shapes.PEERS)]
    assert sorted(names) == sorted(MAKERS)


def test_shapes_must_go_beyond_those_that_compile() -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="3 are needed"):
        shapes.at_least_three("2")

"""Results without a name, and bodies of any kind, never end the process, and change no result.

The models run in child processes: onnxruntime 1.32 ends them for many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import quantglow as qg
from quantglow.export.onnx.compatibility import name_left_out_results
from quantglow.support.arrays import Array
from quantglow.support.processes.isolation import call_isolated
from tests.unit.importer.onnx.onnx_models import floats

FLOAT, INTEGER, CONDITION = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
info, node = helper.make_tensor_value_info, helper.make_node

X = np.array([1.0, 0.0, 2.0], np.float32)

EARLY = [node("Tanh", ["x"], ["y"])]
LATE = [node("NonZero", ["x"], ["found"]), node("Cast", ["found"], ["y"], to=FLOAT)]
"""Nodes before the one that has results without a name: onnxruntime runs what comes after LATE."""

STATISTICS = {
    name: np.array([size, size + 0.25], np.float32)
    for size, name in enumerate(("scale", "bias", "mean", "variance"), start=1)
}
WEIGHTS = {"trips": np.array(2), "yes": np.array(True), "0": np.array([0]), **STATISTICS}

Family = Callable[[Sequence[str]], list[onnx.NodeProto]]
"""Nodes that make three results with these names."""


def values(*names: str) -> list[onnx.ValueInfoProto]:
    """Floats of any shape."""
    return [info(name, FLOAT, None) for name in names]


def body_of(nodes: Sequence[onnx.NodeProto], *ends: str) -> onnx.GraphProto:
    """The body of a Loop with two states ``s`` and ``t``."""
    inputs = [info("trip", INTEGER, []), info("on", CONDITION, []), *values("s", "t")]
    return helper.make_graph(nodes, "body", inputs, [info("on", CONDITION, []), *values(*ends)])


def loop(names: Sequence[str], body: onnx.GraphProto | None = None) -> list[onnx.NodeProto]:
    inside = [node("Tanh", ["s"], ["a"]), node("Abs", ["t"], ["b"]), node("Add", ["a", "b"], ["c"])]
    body = body or body_of(inside, "a", "b", "c")
    return [node("Loop", ["trips", "yes", "y", "y"], names, body=body)]


def passing_loop(names: Sequence[str]) -> list[onnx.NodeProto]:
    """A body without nodes."""
    return loop(names, body_of([], "t", "s", "s"))


def repeating_loop(names: Sequence[str]) -> list[onnx.NodeProto]:
    """A body that gives a value three times."""
    return loop(names, body_of([node("Tanh", ["s"], ["a"])], "a", "a", "a"))


def counting_loop(names: Sequence[str]) -> list[onnx.NodeProto]:
    """A body without nodes that gives the number of each trip."""
    body = body_of([], "t", "s", "trip")
    body.output[3].CopyFrom(info("trip", INTEGER, None))
    numbers = [node("Cast", ["numbers"], names[2:], to=FLOAT)] if names[2] else []
    return [*loop([*names[:2], "numbers" if numbers else ""], body), *numbers]


def nested_loop(names: Sequence[str]) -> list[onnx.NodeProto]:
    """The results without a name are those of a node in a body."""
    inner = loop(names)[0]
    inner.input[2:] = ["s", "t"]
    inner.attribute[0].g.input[0].name = "inner trip"
    chosen = next(filter(None, names))
    ends = ["s", "t", chosen]
    inputs = [info("outer trip", INTEGER, []), info("go", CONDITION, []), *values("s", "t")]
    body = helper.make_graph([inner], "outer", inputs, [info("go", CONDITION, []), *values(*ends)])
    results = [f"{name} of all" if name == chosen else "" for name in ("", "", chosen)]
    built = node("Loop", ["trips", "yes", "y", "y"], results, body=body)
    return [built, *(node("Identity", [f"{chosen} of all"], [name]) for name in names if name)]


def scan(names: Sequence[str], body: onnx.GraphProto | None = None) -> list[onnx.NodeProto]:
    inside = [node("Add", ["s", "e"], ["a"]), node("Tanh", ["a"], ["b"]), node("Abs", ["e"], ["c"])]
    body = body or helper.make_graph(inside, "body", values("s", "e"), values("a", "b", "c"))
    return [
        node("Flatten", ["y"], ["rows"], axis=1),
        node("ReduceSum", ["rows", "0"], ["start"], keepdims=0),
        node("Scan", ["start", "rows"], names, body=body, num_scan_inputs=1),
    ]


def passing_scan(names: Sequence[str]) -> list[onnx.NodeProto]:
    """A body without nodes."""
    return scan(names, helper.make_graph([], "body", values("s", "e"), values("s", "e", "s")))


def branches(names: Sequence[str]) -> list[onnx.NodeProto]:
    """A branch gives values of different ranks, the other one value three times."""
    inside = [node("Neg", ["y"], ["b"]), node("Flatten", ["y"], ["c"]), node("Abs", ["x"], ["d"])]
    then = helper.make_graph(inside, "then", [], values("b", "c", "d"))
    other = helper.make_graph([node("Abs", ["y"], ["a"])], "else", [], values("a", "a", "a"))
    return [
        node("ReduceMin", ["y"], ["least"], keepdims=0),
        node("Cast", ["least"], ["any"], to=CONDITION),
        node("If", ["any"], names, then_branch=then, else_branch=other),
    ]


def split(names: Sequence[str]) -> list[onnx.NodeProto]:
    return [node("Concat", ["y", "y", "y"], ["all"], axis=0), node("Split", ["all"], names)]


def normalization(names: Sequence[str]) -> list[onnx.NodeProto]:
    """A BatchNormalization that trains; its first result has a name in any case."""
    sure = [names[0] or "unread", *names[1:]]
    return [
        node("Flatten", ["y"], ["row"], axis=0),
        node("Transpose", ["row"], ["column"]),
        node("Concat", ["column", "column"], ["wide"], axis=1),
        node("BatchNormalization", ["wide", *STATISTICS], sure, training_mode=1),
    ]


FAMILIES: dict[str, Family] = {
    f.__name__: f
    for f in (
        *(loop, passing_loop, repeating_loop, counting_loop, nested_loop),
        *(scan, passing_scan, branches, split, normalization),
    )
}


def models(family: Family) -> Iterator[onnx.ModelProto]:
    """A model for each choice of results that have a name, behind the cut, and one before it."""
    ways = [(LATE, named) for named in product((True, False), repeat=3) if any(named)]
    for before, named in [*ways, (EARLY, (False, False, True))]:
        names = [f"r{i}" if is_named else "" for i, is_named in enumerate(named)]
        yield model_of([*before, *family(names)], [name for name in names if name])


def model_of(nodes: Sequence[onnx.NodeProto], names: Sequence[str]) -> onnx.ModelProto:
    known = [numpy_helper.from_array(array, name) for name, array in WEIGHTS.items()]
    graph = helper.make_graph(nodes, "model", [info("x", FLOAT, [3])], values(*names), known)
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def compare(arrays: list[Array], families: list[str]) -> list[Array]:
    """For a child process: every model of some families beside onnx.reference."""
    for family, model in ((name, model) for name in families for model in models(FAMILIES[name])):
        named = onnx.ModelProto()
        named.CopyFrom(model)
        name_left_out_results(named)
        results = ReferenceEvaluator(named).run(None, {"x": arrays[0]})
        compiled = qg.compile(model, num_threads=1).run(None, {"x": arrays[0]})
        for ours, theirs in zip(compiled, results, strict=True):
            # The reference stacks rows without a new axis.
            same = theirs.reshape(ours.shape)
            np.testing.assert_allclose(ours, same, rtol=1e-5, atol=1e-6, err_msg=family)
    return []


LOOPS = [name for name in FAMILIES if name.endswith("loop")]
OTHERS = [name for name in FAMILIES if name not in LOOPS]


@pytest.mark.slow_variants
@pytest.mark.parametrize("families", [LOOPS, OTHERS], ids=["loops", "others"])
def test_models_with_nameless_results_agree_with_the_reference(families: list[str]) -> None:
    assert call_isolated(f"{__name__}:compare", [X], {"families": families}, seconds=120) == []


def test_new_names_are_unique() -> None:
    model = model_of([*EARLY, *split(["", "r", "left out 0"]), *loop(["", "", "s"])], ["r"])
    assert name_left_out_results(model)
    built = [name for node in model.graph.node for name in node.output]
    assert all(built)
    assert len(built) == len(set(built))


def test_a_normalization_that_does_not_train_has_one_result() -> None:
    built = node("BatchNormalization", ["x", *STATISTICS], ["y", "", "", "", ""])
    model = model_of([built], ["y"])
    assert name_left_out_results(model)
    assert list(model.graph.node[0].output) == ["y"]


def empty_values(place: str, before: Sequence[onnx.NodeProto]) -> onnx.ModelProto:
    """A model that computes an empty number of trips, condition or position."""
    sizes, row = ["0", "0"], [node("Flatten", ["y"], ["row"], axis=1)]
    none = [*row, node("Slice", ["row", *sizes], ["none"]), node("Cast", ["none"], ["no"], to=7)]
    sequence = [*before, *none, node("SequenceConstruct", ["y", "y"], ["all"])]
    if place == "SequenceAt":
        return model_of([*sequence, node(place, ["all", "no"], ["r"])], ["r"])
    if place.startswith("Sequence"):
        new = ["y"] if place == "SequenceInsert" else []
        joined = node("ConcatFromSequence", ["more"], ["r"], axis=0)
        return model_of([*sequence, node(place, ["all", *new, "no"], ["more"]), joined], ["r"])
    (built,) = loop(["r", "", ""])
    if place == "trips":
        built.input[0] = "no"
    else:
        body = built.attribute[0].g
        body.node.append(node("Cast", ["no"], ["next"], to=CONDITION))
        body.output[0].CopyFrom(info("next", CONDITION, None))
    return model_of([*before, *none, built], ["r"])


PLACES = ("trips", "condition", "SequenceAt", "SequenceErase", "SequenceInsert")


def refuse(arrays: list[Array]) -> list[Array]:
    """For a child process: an empty value is refused, wherever it is."""
    for place, before in product(PLACES, (EARLY, LATE)):
        with pytest.raises(qg.QuantglowError):
            qg.compile(empty_values(place, before), num_threads=1).run(None, {"x": arrays[0]})
    return []


@pytest.mark.slow
def test_empty_numbers_and_conditions_are_refused() -> None:
    assert call_isolated(f"{__name__}:refuse", [X], seconds=120) == []


@pytest.mark.parametrize("trips", [-1, np.iinfo(np.int64).min])
def test_negative_numbers_of_trips_are_none(trips: int) -> None:
    model = model_of([*EARLY, *loop(["r", "s", "t"])], ["r", "t"])
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.array(trips), "trips"))
    state, stacked = qg.compile(model, num_threads=1).run(None, {"x": X})
    np.testing.assert_allclose(state, np.tanh(X), rtol=1e-6)
    assert len(stacked) == 0


def test_an_empty_scale_is_refused() -> None:
    nodes = [
        node("QuantizeLinear", ["x", "none"], ["q"]),
        node("DequantizeLinear", ["q", "1"], ["r"]),
    ]
    model = model_of(nodes, ["r"])
    for name, size in (("none", 0), ("1", 1)):
        scales = numpy_helper.from_array(np.ones(size, np.float32), name)
        model.graph.initializer.append(scales)
    with pytest.raises(qg.QuantglowError):
        qg.compile(model, num_threads=1).run(None, {"x": floats(3)})

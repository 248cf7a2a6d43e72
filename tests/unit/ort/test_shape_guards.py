"""Wrong ranks that show while onnxruntime runs are errors, never the end of the process."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from quantglow.ort.session import Session, guard_kernels, open_session
from quantglow.support.arrays import Array
from quantglow.support.errors import FallbackError
from quantglow.support.processes.isolation import RaisedInChild, call_isolated
from tests.unit.importer.onnx.onnx_models import floats

SCALES = np.array([1, 2], np.float32)
IMAGE, ROIS, NUMBERS = floats(1, 1, 4, 4), floats(2, 4), np.array([0, 0])
STEP, WINDOW = np.array(2), floats(4)
LENGTHS = np.array([3, 2])

SEQUENCE = floats(4, 2, 3)


def weights_of(rows: int) -> dict[str, Array]:
    """Weights of inputs and of the state."""
    return {"w": floats(1, rows, 3), "r": floats(1, rows, 2)}


CASES: dict[str, tuple[str, int, dict[str, Any], dict[str, Array], dict[str, Array]]] = {
    "Resize-10": ("Resize", 10, {}, {"x": floats(2, 3)}, {"scales": SCALES}),
    "Resize-13": ("Resize", 13, {}, {"x": floats(2, 3)}, {"": SCALES[:0], "scales": SCALES}),
    "Upsample-7": ("Upsample", 7, {"scales": [1.0, 2.0]}, {"x": floats(2, 3)}, {}),
    "Upsample-9": ("Upsample", 9, {}, {"x": floats(2, 3)}, {"scales": SCALES}),
    "RoiAlign-16": ("RoiAlign", 16, {}, {"x": IMAGE, "rois": ROIS, "numbers": NUMBERS}, {}),
    "GridSample-16": ("GridSample", 16, {}, {"x": IMAGE, "grid": floats(1, 3, 3, 2)}, {}),
    "GridSample-20": ("GridSample", 20, {}, {"x": IMAGE, "grid": floats(1, 3, 3, 2)}, {}),
    "ReverseSequence-10": ("ReverseSequence", 10, {}, {"x": floats(4, 2), "n": LENGTHS}, {}),
    "ReverseSequence-17": ("ReverseSequence", 17, {}, {"x": floats(4, 2), "n": LENGTHS}, {}),
    "Multinomial-7": ("Multinomial", 7, {"seed": 1.0}, {"x": floats(2, 3)}, {}),
    "STFT-17": ("STFT", 17, {}, {"x": floats(1, 8, 1), "step": STEP, "window": WINDOW}, {}),
    "LSTM-14": ("LSTM", 14, {"hidden_size": 2}, {"x": SEQUENCE}, weights_of(8)),
    "GRU-14": ("GRU", 14, {"hidden_size": 2}, {"x": SEQUENCE}, weights_of(6)),
    "DFT-17": ("DFT", 17, {"axis": 1}, {"x": floats(1, 8, 1)}, {}),
    "DFT-20": ("DFT", 20, {}, {"x": floats(1, 8, 1)}, {}),
}
"""Operator, opset, attributes, operands and constants."""


def model_of(case: str, *, is_declared: bool = False) -> onnx.ModelProto:
    """A model of one node; the ranks of its operands are not known, or declared."""
    op, opset, stated, operands, constants = CASES[case]
    inputs = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape if is_declared else None
        )
        for name, a in operands.items()
    ]
    known = [numpy_helper.from_array(array, name) for name, array in constants.items() if name]
    built = helper.make_node(op, [*operands, *constants], ["y"], **stated)
    element = TensorProto.INT32 if op == "Multinomial" else TensorProto.FLOAT
    ends = [helper.make_tensor_value_info("y", element, None)]
    graph = helper.make_graph([built], "g", inputs, ends, known)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def results(arrays: list[Array], *, case: str) -> list[Array]:
    """The outputs for operands, by the guarded model."""
    feeds = dict(zip(CASES[case][3], arrays, strict=True))
    return list(open_session(model_of(case).SerializeToString()).run(feeds))


def wrong_ranks(case: str) -> list[Array]:
    """Operands of other ranks than the operator takes."""
    far = {"Resize": 5, "Upsample": 5, "Multinomial": 1}.get(case.split("-")[0], 0)
    return [np.ones((2,) * far, operand.dtype) for operand in CASES[case][3].values()]


EMPTY = [
    *(("LSTM-14", shape) for shape in ((4, 0, 3), (0, 0, 3), (4, 2, 0))),
    *(("GRU-14", shape) for shape in ((4, 0, 3), (0, 2, 3), (0, 0, 3), (4, 2, 0))),
]
"""Cases, and shapes of sequences without elements."""


def refusals(_: list[Array]) -> list[Array]:
    """Whether each of all wrong operands, one after the other in this process, is an error."""
    wrong = [(case, wrong_ranks(case)) for case in CASES]
    wrong += [(case, [np.zeros(shape, np.float32)]) for case, shape in EMPTY]
    return [np.array([is_refused(case, operands) for case, operands in wrong])]


def is_refused(case: str, operands: list[Array]) -> bool:
    try:
        results(operands, case=case)
    except FallbackError:
        return True
    return False


def test_wrong_ranks_raise_and_the_process_goes_on() -> None:
    (refused,) = call_isolated(f"{__name__}:refusals", [], seconds=120)
    assert refused.shape == (len(CASES) + len(EMPTY),) and refused.all()


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_operands_of_wrong_ranks_raise(case: str) -> None:
    with pytest.raises(RaisedInChild, match="FallbackError"):
        call_isolated(f"{__name__}:results", wrong_ranks(case), {"case": case}, seconds=60)


@pytest.mark.parametrize("case", CASES)
def test_operands_that_fit_give_the_same_results(case: str) -> None:
    operands = CASES[case][3]
    (expected,) = Session(model_of(case).SerializeToString()).run(operands)
    np.testing.assert_array_equal(results([*operands.values()], case=case)[0], expected)


@pytest.mark.parametrize("case", CASES)
def test_operands_of_known_ranks_need_no_guard(case: str) -> None:
    model = model_of(case, is_declared=True)
    assert onnx.ModelProto.FromString(guard_kernels(model.SerializeToString())) == model


def test_ranks_that_a_model_only_declares_are_guarded() -> None:
    """A value that a Loop carries."""
    case = model_of("Resize-13", is_declared=True).graph
    body = onnx.GraphProto(name="body", node=case.node, initializer=case.initializer)
    body.node.append(helper.make_node("Identity", ["go"], ["on"]))
    kinds = {"i": TensorProto.INT64, "go": TensorProto.BOOL, "on": TensorProto.BOOL}
    ends = {n: helper.make_tensor_value_info(n, kind, []) for n, kind in kinds.items()}
    body.input.extend([ends["i"], ends["go"], case.input[0]])
    body.output.extend([ends["on"], *case.output])
    x = helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 1, 4, 4])
    trips = numpy_helper.from_array(np.array(1), "trips")
    loop = helper.make_node("Loop", ["trips", "", "image"], ["z"], body=body)
    end = helper.make_tensor_value_info("z", TensorProto.FLOAT, None)
    graph = helper.make_graph([loop], "g", [x], [end], [trips])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    string = onnx.ModelProto.FromString(guard_kernels(model.SerializeToString()))
    inside = string.graph.node[0].attribute[0].g.node
    assert [node.op_type for node in inside] == ["Transpose", "Resize", "Identity"]


@pytest.mark.slow
@pytest.mark.parametrize(("case", "shape"), EMPTY)
def test_empty_sequences_raise(case: str, shape: tuple[int, ...]) -> None:
    empty = np.zeros(shape, np.float32)
    with pytest.raises(RaisedInChild, match="FallbackError"):
        call_isolated(f"{__name__}:results", [empty], {"case": case}, seconds=60)


def vectorized(arrays: list[Array]) -> list[Array]:
    """Rows of both arrays side by side, of shapes that only show while the model runs."""
    widths = [array.shape[-1] for array in arrays]
    names = [f"x{i}" for i in range(len(arrays))]
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [None, None]) for n in names]
    node = helper.make_node(
        "FeatureVectorizer", names, ["y"], domain="ai.onnx.ml", inputdimensions=widths
    )
    end = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "g", inputs, [end])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    return list(open_session(model.SerializeToString()).run(dict(zip(names, arrays, strict=True))))


def test_features_of_no_rows_raise() -> None:
    """onnxruntime 1.32 ends the process for several (damaged file of seed 360051028)."""
    with pytest.raises(RaisedInChild, match="FallbackError"):
        call_isolated(f"{__name__}:vectorized", [floats(0, 9), floats(0, 9)], seconds=60)


def test_features_of_some_rows_stay_the_same() -> None:
    parts = [floats(3, 2), floats(3, 4)]
    np.testing.assert_array_equal(vectorized(parts)[0], np.concatenate(parts, axis=1))


def stacked_numbers(operands: list[Array], *, trips: int) -> list[Array]:
    """The numbers of a Loop's trips; nothing reads its state, which has no name."""
    graph = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (int64 n, float[2] x) => (int64[m] y) '
        "{ y = Identity (n) }"
    )
    body = onnx.parser.parse_graph(
        "body (int64 trip, bool holds, float[2] x0) => (bool on, float[2] x1, int64 "
        "number) { on = Identity (holds) x1 = Relu (x0) number = Identity (trip) }"
    )
    loop = helper.make_node("Loop", ["n", "", "x"], ["", "y"], body=body)
    graph.graph.node[0].CopyFrom(loop)
    session = open_session(graph.SerializeToString())
    return session.run({"n": np.array(trips), "x": operands[0]})


@pytest.mark.parametrize("trips", [0, 3])
def test_results_that_nothing_reads_need_no_name(trips: int) -> None:
    place, state = f"{__name__}:stacked_numbers", np.ones(2, np.float32)
    (actual,) = call_isolated(place, [state], {"trips": trips}, seconds=60)
    np.testing.assert_array_equal(actual, np.arange(trips))

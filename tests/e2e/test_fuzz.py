"""A short run of each fuzzer; ``make fuzz`` is the long one.  Every finding becomes a test."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import parser

from tests.fuzz import files, saved_files, saved_texts
from tests.fuzz.compare import REFUSED, Setting, check, onnxruntime_outputs, session
from tests.fuzz.isolated import findings, last_words
from tests.fuzz.shrink import shrunk
from tests.fuzz.sized_ends import ENDS, Ends
from tests.fuzz.unspecified import unspecified_outputs
from tests.generators.onnx_models import models
from tests.support.combinations import mark_slow


@pytest.mark.slow_variants
@pytest.mark.parametrize("what", ["graphs", "exports", "plugged", "files", "saved", "texts"])
@pytest.mark.parametrize("seeds", mark_slow([3, 60], {3}))
def test_finds_nothing(what: str, seeds: int) -> None:
    actual = [finding for finding in findings(what, range(20_000, 20_000 + seeds)) if finding]
    assert [finding for finding in actual if finding.kind != REFUSED] == []
    assert len(actual) <= max(1, seeds / 10)


def test_a_finding_shows_the_innermost_frames_of_a_crash() -> None:
    frames = "".join(f'  File "{i}.py", line {i} in f\n' for i in range(200))
    actual = last_words("a warning\nTimeout (0:01:00)!\n" + frames)
    assert actual.startswith('Timeout (0:01:00)!\n  File "0.py"')
    assert last_words("x" * 1000) == "x" * 600


@pytest.mark.slow
def test_a_seed_always_gives_the_same_case() -> None:
    once, again = models.drawn(5), models.drawn(5)
    assert once.model == again.model
    assert files.damaged(5) == files.damaged(5)
    assert saved_files.damaged(5) == saved_files.damaged(5)
    assert saved_texts.altered(5).result.text == saved_texts.altered(5).result.text


def test_altered_texts_are_accepted_and_refused() -> None:
    """Most of them reach the compiler; others are refused as files, with their lines as drawn."""
    drawn = [saved_texts.altered(seed) for seed in range(200)]
    assert sum(each.result.graph is not None and not each.changed for each in drawn) > 100
    assert sum(each.result.refused > 0 and bool(each.changed) for each in drawn) > 15


@pytest.mark.slow
def test_an_undeclared_kind_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fuzzer draws operands of kinds that the compiler does not take."""
    monkeypatch.setattr("quantglow.ir.ops.MaxPool.takes", {})
    monkeypatch.setattr("quantglow.ir.ops.Quantize.takes", {})
    assert any(saved_texts.check_text(seed) for seed in range(600))


def test_a_wrong_operator_is_found_and_shrunk_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quantglow.ir.ops.unary.Relu.reference", lambda self, x: x)
    seed = next(
        s
        for s in range(500)
        if "Relu" in (drawn := {n.op_type for n in models.drawn(s).model.graph.node})
        and not any(name.endswith(("LSTM", "GRU", "RNN")) for name in drawn)  # may have a Relu, too
        and check(models.drawn(s), Setting())
    )
    actual = check(models.drawn(seed), Setting())
    assert actual is not None
    small = shrunk(
        models.drawn(seed),
        lambda case: (again := check(case, Setting())) is not None and again.kind == actual.kind,
    )
    assert "Relu" in [node.op_type for node in small.model.graph.node]
    assert len(small.model.graph.node) <= 2


def test_drawn_models_are_valid_onnx() -> None:
    model = models.drawn(17).model
    onnx.checker.check_model(model, full_check=True)
    assert model.graph.node


def extreme(number: float) -> models.Case:
    """A model with the maximum of its input, and other values beside and behind it."""
    model = parser.parse_model(
        """<ir_version: 9, opset_import: ["": 17]>
        g (float[3, 4] x) => (float[1, 1] largest, float[1, 1] moved, float[3, 4] beside) {
            largest = ReduceMax(x)
            moved = Neg(largest)
            beside = Relu(x)
        }"""
    )
    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    x[1, 2] = number
    return models.Case(model, ({"x": x},) * models.SAMPLES)


def test_extremes_of_nan_are_not_compared_with_onnxruntime() -> None:
    case = extreme(np.nan)
    names = unspecified_outputs(case.model, case.samples[0], lambda m, x: session(m).run(None, x))
    assert names == {"largest", "moved"}
    assert check(case, Setting()) is None


def test_other_results_beside_open_ones_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quantglow.ir.ops.unary.Relu.reference", lambda self, x: x)
    checked = check(extreme(np.nan), Setting())
    assert checked is not None
    assert "output 2" in checked.detail


def test_an_open_result_is_the_same_compiled_and_interpreted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("quantglow.ir.ops.unary.Neg.reference", lambda self, x: np.ones_like(x))
    checked = check(extreme(np.nan), Setting())
    assert checked is not None
    assert checked.kind == "compiled float"


def test_extremes_of_numbers_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "quantglow.ir.ops.pooling.ReduceMax.reference",
        lambda self, x: x.min(self.axes, keepdims=self.keepdims),
    )
    checked = check(extreme(0.5), Setting())
    assert checked is not None
    assert checked.kind == "interpreter float"


@pytest.mark.parametrize(("number", "is_open"), [(1e-9, True), (0.5, False), (0.0, False)])
def test_infinity_times_what_rounding_left_is_open(number: float, is_open: bool) -> None:
    model = parser.parse_model(
        """<ir_version: 9, opset_import: ["": 17]>
        g (float[2, 2] x) => (float[2, 2] y) <float[2, 2] c = {1, inf, 2, 3}> {
            moved = Neg(x)
            y = MatMul(moved, c)
        }"""
    )
    feeds = {"x": np.array([[1, number], [-1, 1]], np.float32)}
    names = unspecified_outputs(model, feeds, lambda m, x: session(m).run(None, x))
    assert names == ({"y"} if is_open else set())


@pytest.mark.parametrize(("number", "is_open"), [(2 + 2**-22, True), (2.5, False), (2.0, False)])
def test_a_step_where_rounding_may_have_been_is_open(number: float, is_open: bool) -> None:
    model = parser.parse_model(
        """<ir_version: 9, opset_import: ["": 17]>
        g (float[2] x) => (float[2] y) { moved = Neg(x)  y = Ceil(moved) }"""
    )
    feeds = {"x": np.array([number, -9.5], np.float32)}
    names = unspecified_outputs(model, feeds, lambda m, x: session(m).run(None, x))
    assert names == ({"y"} if is_open else set())


@pytest.mark.parametrize(
    ("operator", "numbers", "is_open"),
    [
        ("Cast <to: int = 9>", (1e-9, 1), True),
        ("Cast <to: int = 9>", (0, 1), False),
        ("DynamicQuantizeLinear", (-1, 1), True),
        ("DynamicQuantizeLinear", (0, 1), False),
        ("DynamicQuantizeLinear", (np.inf, 1), True),
    ],
)
def test_integers_that_rounding_decides_are_open(
    operator: str, numbers: tuple[float, float], is_open: bool
) -> None:
    kind, more = ("bool", "") if operator.startswith("Cast") else ("uint8", ", scale, zero")
    model = parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 17]>
        g (float[2] x) => ({kind}[2] y) {{ y{more} = {operator} (x) }}"""
    )
    feeds = {"x": np.array(numbers, np.float32)}
    names = unspecified_outputs(model, feeds, lambda m, x: session(m).run(None, x))
    assert names == ({"y"} if is_open else set())


@pytest.mark.parametrize(("number", "is_open"), [(2e38, True), (1e3, False)])
def test_a_sum_that_may_overflow_on_its_way_is_open(number: float, is_open: bool) -> None:
    model = parser.parse_model(
        """<ir_version: 9, opset_import: ["": 17]>
        g (float[2, 2] x) => (float[2, 2] y) <float[2, 2] c = {1, 1, 1, -1}> {
            moved = Neg(x)
            y = MatMul(moved, c)
        }"""
    )
    feeds = {"x": np.array([[number, number], [number, -number]], np.float32)}
    names = unspecified_outputs(model, feeds, lambda m, x: session(m).run(None, x))
    assert names == ({"y"} if is_open else set())


ENDLESS = 82003640
"""A damaged file whose Loop has no end."""


def test_a_loop_without_an_end_is_no_finding_where_ctrl_c_ends_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(files, "RUN_SECONDS", 0.5)
    assert files.check_file(files.damaged(ENDLESS)) is None


@pytest.mark.parametrize(("number", "is_open"), [(1.0, False), (np.inf, True)])
def test_a_transform_of_infinities_is_open(number: float, is_open: bool) -> None:
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["": 20]> g (float[1,4,1] x) => (float[1,4,2] y)'
        "{ y = DFT (x) }"
    )
    feeds = {"x": np.float32([1, 2, number, 3]).reshape(1, 4, 1)}
    names = unspecified_outputs(model, feeds, lambda m, x: session(m).run(None, x))
    assert bool(names) is is_open


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("shape", [(5, 7), (1, 2, 6, 5)])
@pytest.mark.parametrize("opset", [13, 18])
def test_ends_that_depend_on_sizes_are_models(
    end: Callable[[Ends, str, int], str], shape: tuple[int, ...], opset: int
) -> None:
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)
    graph = onnx.helper.make_graph([], "ends", [x], [])
    opsets = [onnx.helper.make_opsetid("", opset)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)
    for seed in range(4):
        proto = onnx.ModelProto()
        proto.CopyFrom(model)
        result = end(Ends(proto, np.random.default_rng(seed)), "x", len(shape))
        proto.graph.output.append(onnx.helper.make_tensor_value_info(result, 1, None))
        (array,) = onnxruntime_outputs(proto, {"x": np.ones(shape, np.float32)})
        assert array.dtype == np.float32

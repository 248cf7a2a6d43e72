"""Infinities and NaN of a model's own stay float; the rest of the network is int8."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import quantglow as qg
from quantglow.ir.graph.node import Constant
from quantglow.ir.ops import Scatter
from quantglow.ir.ops.indexing import REDUCTIONS
from quantglow.profiling.specials import brought, node_specials
from tests.support.combinations import covering, mark_slow
from tests.unit.importer.onnx.onnx_models import Const, floats, single
from tests.unit.quantization.masked_networks import (
    ATTENTIONS,
    FINITE_ATTENTIONS,
    WIDTH,
    Feeds,
    attention,
    causal,
    classes,
    feeds,
    model_of,
    node,
    pooling,
    table,
    targets,
)

LENGTHS = (6, 9, 1, 13)


def samples(model: onnx.ModelProto, *lengths: int, hidden: bool = True) -> list[Feeds]:
    return [feeds(model, n, seed, hidden) for seed, n in enumerate(lengths * (8 // len(lengths)))]


def reference_outputs(model: onnx.ModelProto, inputs: Feeds) -> Any:
    return onnxruntime.InferenceSession(model.SerializeToString()).run(None, inputs)


def assert_close(model: onnx.ModelProto, compiled: Any, inputs: Feeds, share: float = 0.1) -> None:
    for right, value in zip(
        reference_outputs(model, inputs), compiled.run(None, inputs), strict=True
    ):
        finite = np.isfinite(right)
        np.testing.assert_array_equal(value[~finite], right[~finite])
        error = np.linalg.norm(value[finite] - right[finite])
        assert error <= share * np.linalg.norm(right[finite])


def precisions(compiled: Any) -> dict[str, str]:
    return {layer.name: layer.precision for layer in compiled.report.layers}


@pytest.mark.slow_variants
@pytest.mark.parametrize(
    ("calibrated", "name"), covering([(6,), (6, 9), (9, 1)], [*ATTENTIONS]), ids=str
)
def test_masked_attention_is_int8_at_every_length(
    name: str, calibrated: tuple[int, ...], tmp_path: Path
) -> None:
    model = ATTENTIONS[name]()
    data = samples(model, *calibrated)
    compiled = qg.quantize_and_compile(model, data, num_threads=1, progress=False)
    precision = precisions(compiled)
    assert {"a", "raw", "mixed", "y"} <= {n for n, kind in precision.items() if kind == "int8"}
    compiled.save(tmp_path / "m.qgm")
    loaded = [qg.load(tmp_path / "m.qgm", num_threads=n) for n in (1, 2, 3)]
    for length in LENGTHS:
        inputs = feeds(model, length, 56)
        assert_close(model, compiled, inputs)
        for other in loaded:
            for one, two in zip(compiled.run(None, inputs), other.run(None, inputs), strict=True):
                np.testing.assert_array_equal(one, two)


@pytest.mark.slow_variants
@pytest.mark.parametrize(
    "name", mark_slow(["table", "causal", "causal choice", "chosen"], {"table", "causal"})
)
def test_a_mask_that_calibration_did_not_see_hides_all_the_same(name: str) -> None:
    """The hidden class of a table; all but the first place of a causal mask."""
    model = ATTENTIONS[name]()
    lengths = (1,) if name.startswith("causal") else (6,)
    data = samples(model, *lengths, hidden=False)
    compiled = qg.quantize_and_compile(model, data, num_threads=1, progress=False)
    inputs = feeds(model, 6, 56)
    later = {**inputs, "x": inputs["x"].copy()}
    for length in (n for n in LENGTHS if n > 1):
        graph = compiled.specialisations.at(feeds(model, length)).graph
        assert graph.by_name("p").type.dtype.is_float
    (exact,), (actual,) = reference_outputs(model, inputs), compiled.run(None, inputs)
    if name.startswith("causal"):
        later["x"][:, 3:] = 9
        np.testing.assert_array_equal(compiled.run(None, later)[0][:, :3], actual[:, :3])
    else:
        assert np.linalg.norm(actual - exact) < 0.1 * np.linalg.norm(exact)


OPTIONS: list[dict[str, Any]] = [
    {"int16_activations": "auto"},
    {"max_drop": 3e-3},
    {"preset": "performance"},
    {"calibrate_method": "entropy"},
    {"calibrate_method": "mse", "per_channel": False},
]


@pytest.mark.slow_variants
@pytest.mark.parametrize(("options", "name"), covering(OPTIONS, [*ATTENTIONS]), ids=str)
def test_every_option_takes_masks(name: str, options: dict[str, Any]) -> None:
    model = ATTENTIONS[name]()
    data = samples(model, 6)
    compiled = qg.quantize_and_compile(model, data, num_threads=1, progress=False, **options)
    for length in (6, 9):
        assert_close(model, compiled, feeds(model, length, 56))


@pytest.mark.slow_variants
@pytest.mark.parametrize(
    ("low", "name"),
    covering([-1e4, -1e9, float(np.finfo(np.float32).min)], ["scaled", "subtracted"]),
)
def test_a_scaled_mask_that_calibration_did_not_see_hides_all_the_same(
    name: str, low: float
) -> None:
    """Such models are fed 1 for words and 0 for padding."""
    model = FINITE_ATTENTIONS[name](low)
    data = samples(model, 6, hidden=False)
    compiled = qg.quantize_and_compile(model, data, num_threads=1, progress=False)
    assert precisions(compiled)["masked"] == precisions(compiled)["p"] == "float"
    for length in LENGTHS:
        assert_close(model, compiled, feeds(model, length, 56), share=0.03)


@pytest.mark.parametrize(
    "name", mark_slow(["table", "causal", "causal choice", "chosen", "padded"], {"chosen"})
)
def test_an_infinite_mask_decides_as_a_large_finite_one(name: str) -> None:
    def built(low: float) -> Any:
        model = ATTENTIONS[name](low)
        compiled = qg.quantize_and_compile(model, samples(model, 6), num_threads=1, progress=False)
        return precisions(compiled), compiled.run(None, feeds(model, 6, 56))

    (infinite, actual), (finite, same) = built(-math.inf), built(-1e9)
    assert infinite == finite
    np.testing.assert_array_equal(actual, same)


@pytest.mark.slow_variants
@pytest.mark.parametrize("opset", [13, 17])
def test_frames_of_infinities_stay_float(opset: int) -> None:
    model = pooling(opset)
    rng = np.random.default_rng(0)
    data = [{"x": rng.normal(size=(1, 3, 6, 8)).astype(np.float32)} for _ in range(8)]
    compiled = qg.quantize_and_compile(model, data, num_threads=1, progress=False)
    precision = precisions(compiled)
    assert {precision[n] for n in ("a", "b", "c", "y")} == {"int8"}
    for value in data:
        assert_close(model, compiled, value)


def test_classes_that_are_never_chosen_stay_so() -> None:
    rng = np.random.default_rng(0)
    data = [rng.normal(size=(4, WIDTH)).astype(np.float32) for _ in range(8)]
    compiled = qg.quantize_and_compile(classes(), data, num_threads=1, progress=False)
    assert_close(classes(), compiled, {"x": data[0]})
    (log_probability,) = (o for o in compiled.report.outputs if o.name == "y")
    assert 20 < log_probability.sqnr_db < math.inf
    assert log_probability.max_error < 1


@pytest.mark.slow
def test_the_report_says_which_infinities_keep_a_layer_float() -> None:
    compiled = qg.quantize_and_compile(pooling(), _images(), num_threads=1, progress=False)
    reasons = {layer.name: layer.reason for layer in compiled.report.layers}
    assert reasons["above"] == "its values include inf"
    assert reasons["least"] == "its operand 'above' includes inf"
    compiled = qg.quantize_and_compile(table(), samples(table(), 6), num_threads=1, progress=False)
    reasons = {layer.name: layer.reason for layer in compiled.report.layers}
    assert reasons["bias"] == reasons["masked"] == "its values include -inf"
    assert reasons["p"] == "its operand 'masked' includes -inf"
    assert compiled.report.outputs[0].sqnr_db > 20


def _images() -> list[Feeds]:
    rng = np.random.default_rng(0)
    return [{"x": rng.normal(size=(1, 3, 6, 8)).astype(np.float32)} for _ in range(8)]


def test_a_profile_with_infinities_is_saved_and_merges(tmp_path: Path) -> None:
    model = pooling()
    profile = qg.profile(model, _images(), progress=False)
    profile.save(tmp_path / "p.npz")
    assert qg.Profile.load(tmp_path / "p.npz") == profile
    parts = [qg.profile(model, [x], progress=False) for x in _images()]
    assert qg.Profile.merged(parts) == profile
    assert profile.histograms["above"].specials == {math.inf}
    compiled = qg.quantize_and_compile(model, tmp_path / "p.npz", num_threads=1, progress=False)
    assert_close(model, compiled, _images()[0], 0.1)


def _targets(rows: int = 4, seed: int = 0, chosen: float = 0.5) -> Feeds:
    rng = np.random.default_rng(seed)
    inputs: Feeds = {"x": rng.normal(size=(rows, WIDTH)).astype(np.float32)}
    return inputs | {"c": rng.random((rows, 1)) < chosen}


@pytest.mark.slow_variants
@pytest.mark.parametrize("chosen", [0.5, 1.0, 0.0])
def test_nan_that_marks_absent_values_stays_float(chosen: float, tmp_path: Path) -> None:
    """The law also holds if calibration saw no NaN, or only NaN."""
    model = targets()
    data = [_targets(seed=seed, chosen=chosen) for seed in range(8)]
    compiled = qg.quantize_and_compile(model, data, num_threads=1, progress=False)
    reasons = {layer.name: layer.reason for layer in compiled.report.layers}
    assert precisions(compiled)["ar"] == ("int8" if chosen else "float")
    assert reasons["y"] == reasons["chosen"] == "its values include NaN"
    compiled.save(tmp_path / "m.qgm")
    loaded = [qg.load(tmp_path / "m.qgm", num_threads=n) for n in (1, 2, 3)]
    for rows in (4, 1, 7) if chosen else ():
        inputs = _targets(rows, 56)
        assert_close(model, compiled, inputs)
        for other in loaded:
            for one, two in zip(compiled.run(None, inputs), other.run(None, inputs), strict=True):
                np.testing.assert_array_equal(one, two)


@pytest.mark.slow
def test_reports_take_equal_nan_for_equal() -> None:
    data = [_targets(seed=seed) for seed in range(8)]
    compiled = qg.quantize_and_compile(targets(), data, num_threads=1, progress=False)
    for output in compiled.report.outputs:
        assert 20 < output.sqnr_db < math.inf
        assert output.max_error < 1


def test_nan_that_is_computed_with_is_refused_with_its_source() -> None:
    text = "NaN and 0 Inf value.s. in 'kr' .Relu.. Its operand 'chosen' holds the model's own NaN"
    with pytest.raises(qg.CalibrationError, match=text):
        qg.profile(targets(selected=False), [_targets()], progress=False)


def refused(nodes: list[onnx.NodeProto], **known: float) -> str:
    model = model_of(nodes, {"x": [2, WIDTH]}, ["y"], {n: np.float32(v) for n, v in known.items()})
    data = [np.ones((2, WIDTH), np.float32)]
    with pytest.raises(qg.CalibrationError) as raised:
        qg.quantize_and_compile(model, data, num_threads=1, progress=False)
    return str(raised.value)


def test_an_overflow_is_still_refused() -> None:
    text = refused([node("Mul", ["x", "big"], ["a"]), node("Mul", ["a", "big"], ["y"])], big=3e38)
    assert "32 Inf value(s) in 'y' (Mul)" in text
    assert "Finite numbers led to them. Remedy" in text


def test_an_overflow_beside_a_mask_is_refused() -> None:
    """exp(-inf) is 0, so its infinities are of finite numbers."""
    nodes = [
        node("Mul", ["x", "hundred"], ["large"]),
        node("Where", ["hides", "low", "large"], ["a"]),
        node("Exp", ["a"], ["e"]),
        node("Mul", ["x", "e"], ["y"]),
    ]
    known = {"low": np.float32(-math.inf), "hundred": np.float32(100)}
    hides = np.arange(WIDTH) < 4
    model = model_of(nodes, {"x": [2, WIDTH]}, ["y"], {"hides": hides, **known})
    with pytest.raises(qg.CalibrationError, match=r"Inf value\(s\) in 'e' \(Exp\)"):
        qg.profile(model, [np.ones((2, WIDTH), np.float32)], progress=False)


def test_nan_computed_from_infinities_is_refused_with_their_source() -> None:
    nodes = [node("Add", ["x", "low"], ["a"]), node("Sub", ["a", "low"], ["y"])]
    text = refused(nodes, low=-math.inf)
    assert "32 NaN and 0 Inf value(s) in 'y' (Sub)" in text
    assert "operand 'a' holds the model's own -inf. Remedy" in text


def test_infinite_inputs_are_still_refused() -> None:
    model = causal()
    inputs = feeds(model, 4)
    inputs["x"][0, 0, 0] = -math.inf
    with pytest.raises(qg.CalibrationError, match=r"Inf value\(s\) in input 'x'"):
        qg.quantize_and_compile(model, [inputs], progress=False)


@pytest.mark.slow
def test_a_mask_in_a_branch_hides_in_the_recovery_too() -> None:
    """Both branches are attention; one is masked."""
    low = np.float32(-math.inf)
    model = attention(
        [
            node("ReduceMax", ["x"], ["largest"], keepdims=0),
            node("Greater", ["largest", "limit"], ["is_large"]),
            node(
                "If",
                ["is_large"],
                ["masked"],
                then_branch=onnx.helper.make_graph(
                    [node("Where", ["hides", "low", "scores"], ["t"])],
                    "then",
                    [],
                    [onnx.helper.make_tensor_value_info("t", 1, None)],
                ),
                else_branch=onnx.helper.make_graph(
                    [node("Identity", ["scores"], ["e"])],
                    "else",
                    [],
                    [onnx.helper.make_tensor_value_info("e", 1, None)],
                ),
            ),
        ],
        limit=np.float32(2.5),  # type: ignore[arg-type]
        hides=np.triu(np.ones((6, 6), bool), 1),
        low=low,  # type: ignore[arg-type]
    )
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 6
    data = samples(model, 6)
    sides = {bool(value["x"].max() > 2.5) for value in data}
    assert sides == {True, False}
    compiled = qg.quantize_and_compile(model, data, num_threads=1, progress=False)
    assert precisions(compiled)["mixed"] == "int8"
    for value in data:
        assert_close(model, compiled, value)


def test_a_product_of_rows_may_turn_the_sign_of_an_infinity() -> None:
    hidden = Constant(name="hidden", value=np.float32([-np.inf, 1]))
    rows = Constant(name="rows", value=np.int64([0, 1]))
    updates = Constant(name="updates", value=np.float32([-2, 3]))
    specials = {
        how: node_specials(
            Scatter(name="y", x=hidden, indices=rows, updates=updates, reduction=how), brought
        )
        for how in REDUCTIONS
    }
    assert specials.pop("mul") == {-math.inf, math.inf}
    assert set(specials.values()) == {frozenset({-math.inf})}


def test_an_infinite_weight_gives_no_warning() -> None:
    weights = floats(64, 32)
    weights[3, 4] = math.inf
    model, inputs = single("Gemm", floats(2, 64), Const(weights), opset=14)
    compiled = qg.quantize_and_compile(model, [inputs], progress=False)
    np.testing.assert_array_equal(
        np.isfinite(compiled.run(None, inputs)[0]), np.isfinite(inputs["x0"] @ weights)
    )

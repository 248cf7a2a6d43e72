"""The report as text, HTML and JSON."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import quantglow as qg
from quantglow.api.import_model import open_float_graph
from quantglow.evaluation.layers import local_sums, values_by_name
from quantglow.evaluation.metrics import sqnr_db
from quantglow.interpreter import interpret
from quantglow.ir.ops import Conv
from quantglow.report import LayerAccuracy, MemoryFigures, OutputAccuracy, Report
from quantglow.report.accuracy import bars
from tests.support.small_network import small_model, small_samples


@pytest.fixture(scope="module")
def compiled() -> qg.CompiledModel:
    return qg.quantize_and_compile(
        small_model(), small_samples(), ignored_scope=["scores"], num_threads=1
    )


def made_up() -> Report:
    return Report(
        target="avx2",
        num_threads=2,
        memory=MemoryFigures(128, 64, 10),
        seconds={"import": 0.5},
        outputs=(OutputAccuracy("<y>", math.inf, 1.0, 0.0, 0.5),),
        layers=(LayerAccuracy("[red]a", "Conv", "float", "why & so", None, -math.inf),),
        profile={"samples": 3},
        compared_with="x",
        samples=3,
        notes=("n",),
    )


def test_json_round_trips_with_infinite_figures() -> None:
    text = json.dumps(made_up().to_json(), allow_nan=False)
    assert Report.from_json(json.loads(text)) == made_up()


def test_text_shows_names_that_look_like_markup() -> None:
    assert "[red]a" in str(made_up())


def test_html_escapes_names() -> None:
    html = made_up()._repr_html_()
    assert "&lt;y&gt;" in html
    assert "why &amp; so" in html


def test_efficiency_is_lower_bound_over_peak() -> None:
    assert made_up().memory.efficiency == 0.5


def test_outputs_are_compared_with_onnxruntime(compiled: Any) -> None:
    report = compiled.report
    assert (report.compared_with, report.samples) == ("onnxruntime (float)", 4)


def test_output_sqnr_is_that_of_the_model(compiled: Any) -> None:
    graph, samples = qg.import_model(small_model()), small_samples()
    exact = np.stack([interpret(graph, {"x": x})[1] for x in samples])
    actual = np.stack([compiled(x)[1] for x in samples])
    assert compiled.report.outputs[1].sqnr_db == pytest.approx(sqnr_db(exact, actual), abs=0.01)


def test_class_like_outputs_alone_have_top1_agreement(compiled: Any) -> None:
    scores, features = compiled.report.outputs
    assert (scores.top1_agreement is None, features.top1_agreement) == (False, None)


def test_an_output_may_be_one_number_without_axes() -> None:
    model = small_model()
    model.graph.node.append(helper.make_node("ReduceMean", ["scores"], ["mean"], keepdims=0))
    model.graph.output.append(helper.make_tensor_value_info("mean", TensorProto.FLOAT, []))
    compiled = qg.quantize_and_compile(model, small_samples(), num_threads=1, progress=False)
    actual = {output.name: output for output in compiled.report.outputs}["mean"]
    assert actual.sqnr_db > 20
    assert actual.top1_agreement is None
    assert "mean" in str(qg.diagnose(model, small_samples(), progress=False))


def test_layers_that_stayed_float_say_why(compiled: Any) -> None:
    layer = next(x for x in compiled.report.layers if x.name == "scores")
    assert layer.precision == "float"
    assert "ignored_scope" in layer.reason


def test_int8_layers_have_both_figures(compiled: Any) -> None:
    int8 = [x for x in compiled.report.layers if x.precision == "int8" and x.op == "Conv"]
    assert int8
    assert all(x.sqnr_local_db and x.sqnr_accumulated_db for x in int8)


def test_local_sqnr_is_of_exact_operands(compiled: Any) -> None:
    """A node whose operand is the graph input: local and accumulated mean the same."""
    layer = next(x for x in compiled.report.layers if x.op == "Conv")
    assert layer.sqnr_local_db == pytest.approx(layer.sqnr_accumulated_db)


def test_local_figures_ignore_errors_of_layers_before() -> None:
    """Spoiling a layer's weights changes its own local figure only."""
    graph = open_float_graph(small_model())
    profile = qg.profile(graph, small_samples())
    int8 = qg.quantize(graph, profile)
    conv = next(n for n in int8.nodes if isinstance(n, Conv))
    spoiled = int8.rebuild(
        lambda n: replace(n, value=np.zeros_like(n.value)) if n.name == conv.w.name else n
    )
    exact = values_by_name(graph, {"x": small_samples()[0]})
    before, after = local_sums(int8, exact), local_sums(spoiled, exact)
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {conv.name}


@pytest.mark.parametrize("verify", [True, False])
def test_nothing_quantized_is_the_headline(verify: bool) -> None:
    """Not "very close": the outputs are those of the float model."""
    types = {node.op_type for node in small_model().graph.node}
    scope = qg.IgnoredScope(types=tuple(types))
    report = qg.quantize_and_compile(
        small_model(), small_samples(), ignored_scope=scope, verify=verify
    ).report
    assert report.headline.startswith("WARNING: nothing is quantized")
    assert report.summary().to_json()["verdict"] == "no operator is int8"
    assert "close" not in str(report)


def test_without_verification_nothing_is_compared() -> None:
    compiled = qg.quantize_and_compile(small_model(), small_samples(), verify=False)
    assert compiled.report.outputs == ()


def test_a_profile_alone_cannot_be_checked() -> None:
    profile = qg.profile(small_model(), small_samples())
    compiled = qg.quantize_and_compile(small_model(), profile)
    assert "not checked" in str(compiled.report)


def test_every_stage_is_timed(compiled: Any) -> None:
    stages = {"import", "profile", "prepare", "quantize", "lower", "plan", "generate code"}
    assert set(compiled.report.seconds) == stages | {"verify"}


def test_every_value_is_seen_in_the_bars() -> None:
    assert bars((0.0, 1e-6, 1.0)) == " ▁█"

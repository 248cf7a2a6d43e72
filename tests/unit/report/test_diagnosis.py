"""The diagnosis finds the layer at fault, in equal words as text, HTML and JSON."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

import quantglow as qg
from quantglow.api.import_model import open_float_graph
from quantglow.evaluation.accuracy import worst
from quantglow.evaluation.layer_speed import LayerSpeed
from quantglow.evaluation.layers import consequences, sensitivities
from quantglow.evaluation.metrics import sqnr_db
from quantglow.interpreter import interpret
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.ops import Conv, Mul, Softmax
from quantglow.quantization.search.fake_quantization import logit_outputs
from quantglow.report import CodeUse, LayerAccuracy
from tests.support.small_network import small_model, small_samples

LARGE = np.float32([50.0])


@pytest.fixture(scope="module")
def diagnosis() -> qg.Diagnosis:
    config = qg.QuantizationConfig(ignored_scope=["scores"])
    return qg.diagnose(qg.import_model(small_model()), small_samples(), config, samples=3)


def layer(name: str, local: float | None, alone: float | None = None) -> LayerAccuracy:
    return LayerAccuracy(name, "Conv", "int8", "", local, None, alone)


def test_worst_is_by_sensitivity_where_known() -> None:
    layers = [layer("a", 10.0, 50.0), layer("b", 30.0, 20.0), layer("c", 5.0, 60.0)]
    assert [n.name for n in worst(layers, 2)] == ["b", "a"]


def test_worst_is_by_local_error_otherwise() -> None:
    layers = [layer("a", 10.0), layer("b", math.inf), layer("c", 5.0), layer("d", None)]
    assert [n.name for n in worst(layers)] == ["c", "a"]


def test_sensitivity_names_the_spoiled_layer() -> None:
    """A model with zero weights in one layer, which alone has an error."""
    graph = open_float_graph(small_model())
    int8 = qg.quantize(graph, qg.profile(graph, small_samples()))
    conv = next(n for n in int8.nodes if isinstance(n, Conv))
    spoiled = int8.rebuild(
        lambda n: replace(n, value=np.zeros_like(n.value)) if n.name == conv.w.name else n
    )
    feeds = [{"x": x} for x in small_samples()]
    alone = sensitivities(graph, spoiled, [n.name for n in graph.compute_nodes()], feeds)
    assert min(alone, key=alone.__getitem__) == conv.name
    assert sorted(alone.values())[1] > alone[conv.name] + 10


def test_sensitivity_looks_before_a_softmax() -> None:
    """If the answer is clear, the outputs of a Softmax show no error at all."""
    graph = open_float_graph(small_model())
    sure = Mul(name="sure", x=graph.by_name("scores"), y=Constant(name="c", value=LARGE))
    softmax = Softmax(name="p", x=sure)
    graph = Graph(graph.inputs, (("p", softmax),), graph.source_hash)
    int8 = qg.quantize(graph, qg.profile(graph, small_samples()))
    feeds = [{"x": x} for x in small_samples()]
    names = [node.name for node in graph.compute_nodes()]
    assert logit_outputs(graph) == (sure,)
    assert 10 < sensitivities(graph, int8, names, feeds)["features"] < 80


def test_consequences_are_those_of_running_with_the_value() -> None:
    """Changing the input: as if it had been fed."""
    graph = open_float_graph(small_model())
    one, other = small_samples(2)
    exact: dict[Node, np.ndarray] = {}
    interpret(graph, {"x": one}, [exact.__setitem__])
    outputs = [node for _, node in graph.outputs]
    changed = consequences(graph, exact, graph.inputs[0], other, outputs)
    for value, expected in zip(changed, interpret(graph, {"x": other}), strict=True):
        np.testing.assert_array_equal(value, expected)


def test_outputs_are_those_of_the_int8_graph(diagnosis: qg.Diagnosis) -> None:
    graph = open_float_graph(small_model())
    profile, config = (
        qg.profile(graph, small_samples()),
        qg.QuantizationConfig(ignored_scope="scores"),
    )
    int8 = qg.quantize(graph, profile, config, small_samples())
    runs = [(interpret(graph, {"x": x})[1], interpret(int8, {"x": x})[1]) for x in small_samples()]
    exact, values = (np.stack(part) for part in zip(*runs[:3], strict=True))
    assert diagnosis.outputs[1].sqnr_db == pytest.approx(sqnr_db(exact, values), abs=0.01)


def test_float_layers_say_why(diagnosis: qg.Diagnosis) -> None:
    scores = next(n for n in diagnosis.layers if n.name == "scores")
    assert scores.codes is None
    assert "ignored_scope" in str(diagnosis)


def test_layers_that_store_int8_have_code_figures() -> None:
    diagnosis = qg.diagnose(qg.import_model(small_model()), small_samples(), samples=3)
    conv = next(n for n in diagnosis.layers if n.op == "Conv")
    assert conv.codes is not None
    assert conv.codes.seen == pytest.approx(1, abs=0.01)
    assert 64 < conv.codes.used <= 256


def test_json_has_every_layer(diagnosis: qg.Diagnosis) -> None:
    data = json.loads(json.dumps(diagnosis.to_json(), allow_nan=False))
    assert tuple(LayerAccuracy.from_json(n) for n in data["layers"]) == diagnosis.layers


def test_html_escapes_names(diagnosis: qg.Diagnosis) -> None:
    use = CodeUse(-1.0, 1.0, 256, 3, 0.0)
    nasty = replace(layer("</script><p>", 3.0), codes=use)
    page = replace(diagnosis, layers=(nasty,)).to_html()
    assert page.count("</script>") == diagnosis.to_html().count("</script>")
    assert "\\u003cp\\u003e" in page


def test_the_table_of_layers_has_what_each_alone_does(diagnosis: qg.Diagnosis) -> None:
    (table,) = (t for t in diagnosis.tables() if t.title.startswith("Layers"))
    assert table.columns[3] == "alone dB"
    assert all(row[3] for row in table.rows if row[2] == "int8")


def test_times_are_shown_if_they_were_measured(diagnosis: qg.Diagnosis) -> None:
    timed = replace(diagnosis, speeds=(LayerSpeed("scores", "Gemm", "float", 1.0, 2.0),))
    assert "Speed of layers" in str(timed)
    assert "Speed of layers" not in str(diagnosis)


def test_a_profile_is_no_sample() -> None:
    profile = qg.profile(small_model(), small_samples())
    with pytest.raises(qg.CalibrationError, match="holds no samples"):
        qg.diagnose(small_model(), profile)

"""The data of a page: all figures, no samples, no folders."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import quantglow as qg
from quantglow.evaluation.metrics import clipped_share, quantized_ranges
from quantglow.evaluation.report import PageSource
from quantglow.profiling import Histogram
from quantglow.report.page import Figures, model_name, page_data
from tests.support.small_network import small_model, small_samples
from tests.unit.report.test_webpage import data_of


@pytest.fixture(scope="module")
def diagnosis() -> qg.Diagnosis:
    graph = qg.import_model(small_model())
    return qg.diagnose(graph, small_samples(), samples=2, measure_speed=True, progress=False)


@pytest.fixture(scope="module")
def compiled() -> qg.CompiledModel:
    model = qg.quantize_and_compile(small_model(), small_samples(), num_threads=1, progress=False)
    assert isinstance(model, qg.CompiledModel)
    return model


def sections(text: str) -> dict[str, Any]:
    data = data_of(text)
    assert isinstance(data, dict)
    return data


def test_the_page_of_a_diagnosis_has_every_section(diagnosis: qg.Diagnosis) -> None:
    data = sections(diagnosis.to_html())
    names = {node["name"] for node in data["graph"]["nodes"]}
    assert {"x", "features", "scores"} <= names
    assert [row["name"] for row in data["layers"]] == [layer.name for layer in diagnosis.layers]
    assert data["timeline"]["events"] and data["outputs"]["rows"] and data["advice"]
    assert dict(data["facts"]).keys() >= {"date", "quantglow", "preset", "effort", "samples"}


def test_columns_are_declared_beside_the_rows(diagnosis: qg.Diagnosis) -> None:
    data = sections(diagnosis.to_html())
    assert [column["key"] for column in data["columns"]] == list(data["layers"][0])
    titles = {column["title"] for column in data["columns"]}
    (table,) = (table for table in diagnosis.tables() if table.title.startswith("Layers"))
    assert set(table.columns) <= titles
    assert len(data["outputs"]["columns"]) == len(data["outputs"]["rows"][0])


def test_layers_have_their_time(diagnosis: qg.Diagnosis) -> None:
    times = {row["name"]: row["ms"] for row in sections(diagnosis.to_html())["layers"]}
    assert sum(times.values()) == pytest.approx(
        sum(s.float_ms if s.precision == "float" else s.int8_ms for s in diagnosis.speeds)
    )
    assert max(times.values()) > 0


def test_the_stored_range_is_that_of_the_type(diagnosis: qg.Diagnosis) -> None:
    assert diagnosis.graph is not None
    histogram = sections(diagnosis.to_html())["histograms"]["features"]
    params = diagnosis.graph.by_name("features").type.params
    low, high = ((code - params.zero_point) * params.scale for code in (-128, 127))
    assert histogram["range"] == pytest.approx([low, high])


def test_conversions_give_the_range_of_their_value(diagnosis: qg.Diagnosis) -> None:
    assert diagnosis.graph is not None
    assert "x" in quantized_ranges(diagnosis.graph)


def test_the_page_of_a_compiled_model_has_its_graph(compiled: qg.CompiledModel) -> None:
    data = sections(compiled.report.to_html())
    assert len(data["graph"]["nodes"]) == len(
        [node for node in compiled.graph.nodes if node.op != "Constant"]
    )
    assert data["histograms"].keys() >= {"x", "features"}
    assert "Accuracy" in data["verdict"] or "int8 is" in data["verdict"]


def test_a_loaded_model_has_a_page_with_its_figures(
    compiled: qg.CompiledModel, tmp_path: Any
) -> None:
    compiled.save(tmp_path / "model.qgm")
    data = sections(qg.load(tmp_path / "model.qgm", num_threads=1).report.to_html())
    assert data["layers"] == sections(compiled.report.to_html())["layers"]
    assert data["graph"] == sections(compiled.report.to_html())["graph"]
    assert "Remedy" in data["missing"] and "missing" not in sections(compiled.report.to_html())


def test_a_float_model_has_a_page() -> None:
    report = qg.compile(small_model(), num_threads=1).report
    assert sections(report.to_html())["graph"]["nodes"]


def test_a_compiled_model_draws_itself_in_a_notebook(compiled: qg.CompiledModel) -> None:
    assert compiled._repr_html_().startswith("<iframe srcdoc=")


def test_the_trace_of_a_run_is_shown(compiled: qg.CompiledModel, tmp_path: Any) -> None:
    compiled.trace({"x": small_samples()[0]}, tmp_path / "trace.json")
    report = compiled.report
    assert isinstance(report, qg.Report)
    assert sections(report.to_html(tmp_path / "trace.json"))["timeline"]["events"]


def test_reports_are_saved_without_graph_and_source(
    compiled: qg.CompiledModel, diagnosis: qg.Diagnosis
) -> None:
    for data in (compiled.report.to_json(), diagnosis.to_json()):
        assert not {"graph", "source"} & data.keys()
        json.dumps(data, allow_nan=False)


def test_no_sample_is_on_the_page(diagnosis: qg.Diagnosis) -> None:
    """Histograms have the smallest and the largest value, no others."""
    text = diagnosis.to_html()
    for sample in small_samples():
        inner = np.sort(sample, axis=None)[1:-1]
        assert not [value for value in inner.tolist() if f"{value:.7g}" in text]


def test_the_folder_of_a_model_stays_private() -> None:
    assert model_name("/home/someone/secret/net.onnx") == "net.onnx"


def test_values_beyond_the_range_are_clipped() -> None:
    histogram = Histogram.of(np.linspace(0, 1, 1001, dtype=np.float32))
    assert clipped_share(histogram, (0.0, 0.5)) == pytest.approx(0.5, abs=0.01)
    assert clipped_share(histogram, (0.0, 1.0)) == 0


def test_a_page_without_a_graph_has_the_figures_alone() -> None:
    data = page_data(None, PageSource(), Figures(notes=("a note",)))
    assert data["notes"] == ["a note"]
    assert "graph" not in data and "timeline" not in data

"""The C code generator gives the integers of the interpreter and of quantglow's own code."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given

import quantglow as qg
from quantglow.ir.ops.work import count_macs
from tests.generators.quantized_graphs.graphs import mixed_graphs
from tests.support.effort import expensive
from tests.support.embedded import network
from tests.support.equality import assert_equal_values
from tests.support.examples import (
    BATCHES,
    CALIBRATION,
    NETWORKS,
    assert_equal_outputs,
    count_lines,
    int8_graph,
    load_example,
    run_example,
)
from tests.support.feeds import feeds_of
from tests.support.small_network import small_model, small_samples

needs_cc = pytest.mark.skipif(not shutil.which("cc"), reason="cc is not installed")


def generators() -> list[Any]:
    return [load_example("c_backend").CGenerator()]


def macs_by_backend(model: qg.CompiledModel) -> Counter[str]:
    """Multiply-accumulates that each backend runs."""
    macs: Counter[str] = Counter()
    for segment in model.build.segments:
        macs[segment.backend.name] += sum(int(count_macs(node)) for node in segment.nodes)
    return macs


def test_the_example_is_short() -> None:
    assert count_lines("c_backend") < 150


@pytest.mark.slow_variants
@needs_cc
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(("name", "batch"), BATCHES)
def test_c_computes_the_integers_of_the_interpreter(name: str, batch: int, threads: int) -> None:
    graph = int8_graph(name, batch)
    model = qg.compile(graph, num_threads=threads, backends=generators())
    assert_equal_outputs(model, name, batch)
    assert_equal_outputs(qg.compile(graph, num_threads=threads), name, batch)


@needs_cc
@pytest.mark.parametrize("name", NETWORKS)
def test_all_products_run_in_c(name: str) -> None:
    model = qg.compile(int8_graph(name), num_threads=1, backends=generators())
    macs = macs_by_backend(model)
    assert macs["c"] == macs.total() > 0
    others = (s for s in model.build.segments if s.backend.name != "c")
    left = {node.op for segment in others for node in segment.nodes}
    assert left <= {"MaxPool", "ReduceMean", "Softmax"}


@needs_cc
@given(graph=mixed_graphs())
@expensive
def test_drawn_networks_are_those_of_the_interpreter(graph: qg.Graph) -> None:
    feeds = feeds_of(graph)
    actual = qg.compile(graph, num_threads=1, backends=generators()).run(None, feeds)
    assert_equal_values(actual, qg.interpret(graph, feeds))


@needs_cc
@pytest.mark.slow
def test_it_serves_other_batches(tmp_path: Path) -> None:
    chosen = network("ppocr_cls")
    model = qg.quantize_and_compile(
        chosen.path,
        chosen.feeds(CALIBRATION),
        backends=generators(),
        verify=False,
        equalization=(),
        recovery=(),
    )
    model.save(tmp_path / "model.qgm")
    by_llvm = qg.load(tmp_path / "model.qgm")
    samples = [feeds["x"] for feeds in chosen.feeds(2, seed=1)]
    (actual,), (expected,) = (m.run(None, {"x": np.concatenate(samples)}) for m in (model, by_llvm))
    np.testing.assert_array_equal(actual, expected)
    rows = [model.run(None, {"x": sample})[0] for sample in samples]
    np.testing.assert_array_equal(actual, np.concatenate(rows))


@needs_cc
def test_quantize_and_compile_takes_it_and_reports_it() -> None:
    int8 = qg.quantize_and_compile(small_model(), small_samples(), backends=generators())
    by_llvm = qg.compile(int8.graph)
    for x in small_samples(2):
        for actual, expected in zip(int8(x), by_llvm(x), strict=True):
            np.testing.assert_array_equal(actual, expected)
    assert macs_by_backend(int8).keys() <= {"c", "llvm"}
    assert macs_by_backend(int8)["llvm"] == 0
    assert "in c" in str(int8.report)


@needs_cc
def test_both_kinds_of_generators_share_a_model() -> None:
    products = load_example("numpy_backend").NumpyBackend()
    model = qg.quantize_and_compile(
        small_model(),
        small_samples(),
        nodes_to_exclude=["scores"],
        backends=[products, *generators()],
    )
    assert macs_by_backend(model).keys() >= {"numpy", "c"}
    for x in small_samples(2):
        expected = qg.interpret(model.graph, {"x": x})
        assert_equal_values(model(x), expected)


@needs_cc
@pytest.mark.parametrize("name", NETWORKS)
def test_a_saved_model_is_loaded_with_it(name: str, tmp_path: Path) -> None:
    model = qg.compile(int8_graph(name), num_threads=1, backends=generators())
    model.save(tmp_path / "model.qgm")
    loaded = qg.load(tmp_path / "model.qgm", num_threads=1, backends=generators())
    assert isinstance(loaded, qg.CompiledModel)
    assert "c" in {segment.backend.name for segment in loaded.build.segments}
    assert_equal_outputs(loaded, name)
    assert_equal_outputs(qg.load(tmp_path / "model.qgm", num_threads=1), name)


@needs_cc
def test_a_file_includes_no_code_of_others(tmp_path: Path) -> None:
    model = qg.compile(int8_graph("mnist"), num_threads=1, backends=generators())
    with pytest.raises(qg.OptionError, match="compile the model without backend and backends"):
        model.save(tmp_path / "model.qgm", include_code=["native"])


@needs_cc
def test_it_runs_as_a_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_example("c_backend", tmp_path)
    assert "in c" in capsys.readouterr().out


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_example("c_backend"), "CC", "no-such-compiler -o")
    with pytest.raises(qg.BackendError, match=r"no-such-compiler.*Remedy: install a C compiler"):
        qg.compile(int8_graph("mnist"), backends=generators())

"""A Loop that reads all of what it appended runs in programs of its body."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import quantglow as qg
from quantglow.runtime.hybrid import trips as trip_blocks
from quantglow.runtime.hybrid.loop import CompiledLoop
from quantglow.runtime.hybrid.loop_driver import LoopDriver
from quantglow.runtime.hybrid.trips import Progress
from quantglow.support.arrays import Array
from quantglow.support.errors import OutOfRangeError
from tests.support.attending_loop import WIDTH, attending_loop, feeds_of
from tests.support.guarded import guarded
from tests.unit.importer.onnx.onnx_models import by_onnxruntime


def loop_of(compiled: Any) -> CompiledLoop:
    """The loop of a model that ran."""
    (driver,) = compiled.specialisations.compiler.drivers
    assert isinstance(driver, LoopDriver)
    *_, loop = driver._loops.values()
    return loop


def assert_close(actual: Sequence[Array], expected: Sequence[Array]) -> None:
    for one, other in zip(actual, expected, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def assert_runs(compiled: Any, model: onnx.ModelProto, feeds: Mapping[str, Array]) -> None:
    """A model gives what onnxruntime gives, and its own programs computed it."""
    assert_close(compiled.run(None, feeds), by_onnxruntime(model, feeds))
    assert compiled.report.fallback == ()
    assert any("now [" in program.shapes for program in compiled.report.programs)


@pytest.mark.slow_variants
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("trips", [65, 200])
def test_a_constant_number_of_trips(trips: int, threads: int) -> None:
    model = attending_loop(trips, behind=True)
    compiled = qg.compile(model, num_threads=threads)
    for seed in range(2):
        assert_runs(compiled, model, feeds_of(model, seed))


def test_any_number_of_trips() -> None:
    model = attending_loop(None, numbered=True)
    compiled = qg.compile(model, num_threads=1)
    for trips in (3, 1, 200, 64, 63, 2):
        assert_runs(compiled, model, feeds_of(model, trips, trips=trips))


def test_no_trip_at_all_is_left_to_onnxruntime() -> None:
    """It gives stacked values of no trip another rank."""
    model = attending_loop(None)
    compiled = qg.compile(model, num_threads=1)
    feeds = feeds_of(model, trips=0)
    (*carried, states), (*expected, _) = compiled.run(None, feeds), by_onnxruntime(model, feeds)
    assert_close(carried, expected)
    assert states.shape == (0, 1, 1, WIDTH)


@pytest.mark.parametrize("stop", [0, 1, 40, 63, 64, 150, 500])
def test_a_condition_ends_the_loop(stop: int) -> None:
    model = attending_loop(200, stops=True, numbered=True)
    assert_runs(qg.compile(model, num_threads=1), model, feeds_of(model, stop=stop))


def test_declared_shapes_change_nothing() -> None:
    model = attending_loop(70)
    sizes = {"final": [1, 1, 16], "states": [70, 1, 1, 16]}
    for output in model.graph.output:
        shape = sizes.get(output.name, [1, 71, 16])
        output.CopyFrom(helper.make_tensor_value_info(output.name, 1, shape))
    assert_runs(qg.compile(model, num_threads=1), model, feeds_of(model))


def test_names_in_other_loops_may_be_the_same() -> None:
    model = attending_loop(70)
    first = onnx.NodeProto()
    first.CopyFrom(model.graph.node[0])
    first.name, first.input[:] = "first", ["few", "", "s0", "r0", "r0"]
    first.output[:] = ["known", "k2", "v2", "states2"]
    body = next(a.g for a in model.graph.node[0].attribute if a.name == "body")
    next(n for n in body.node if n.output[0] == "both").input[0] = "known"
    model.graph.node.insert(0, first)
    inputs = {"few": np.array(2), "s0": np.ones((1, 1, 16)), "r0": np.ones((1, 1, 16))}
    for name, array in inputs.items():
        kind = array if name == "few" else array.astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(kind, name))
    compiled = qg.compile(model, num_threads=1)
    feeds = feeds_of(model)
    assert_close(compiled.run(None, feeds), by_onnxruntime(model, feeds))


@pytest.mark.slow
def test_free_dimensions_stay_free() -> None:
    model = attending_loop(70, batch="N", start="P")
    compiled = qg.compile(model, num_threads=1)
    for batch, start in ((1, 3), (2, 3), (3, 1), (2, 9), (5, 4)):
        assert_runs(compiled, model, feeds_of(model, N=batch, P=start))


def test_a_trip_over_nothing_comes_before_the_others() -> None:
    model = attending_loop(70, start="P", numbered=True)
    compiled = qg.compile(model, num_threads=1)
    for start in (0, 2, 0):
        assert_runs(compiled, model, feeds_of(model, P=start))


@pytest.mark.slow
def test_the_reference_backend_makes_trip_after_trip() -> None:
    model = attending_loop(66)
    assert_runs(qg.compile(model, backend="reference"), model, feeds_of(model))


def test_a_timeline_has_each_trip(tmp_path: Path) -> None:
    model = attending_loop(70)
    compiled = qg.compile(model, num_threads=1)
    feeds = feeds_of(model)
    plain = compiled.run(None, feeds)
    traced = compiled.trace(feeds, tmp_path / "trace.json")
    for one, other in zip(traced, plain, strict=True):
        np.testing.assert_array_equal(one, other)


def test_threads_may_share_a_loop() -> None:
    model = attending_loop(None)
    compiled = qg.compile(model, num_threads=1)
    cases = [feeds_of(model, n, trips=70 + n % 3) for n in range(12)]
    results = [compiled.run(None, feeds) for feeds in cases]
    actual: dict[int, Any] = {}

    def run(number: int) -> None:
        actual[number] = compiled.run(None, cases[number])

    workers = [threading.Thread(target=run, args=(n,)) for n in range(len(cases))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for number, outputs in enumerate(results):
        for one, other in zip(actual[number], outputs, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("at_end", [True, False])
def test_no_trip_leaves_its_buffers(at_end: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def between_pages(nbytes: int) -> Array:
        return guarded(np.full(nbytes, 0xA5, np.uint8), at_end)

    def of_shape(shape: tuple[int, ...], dtype: Any) -> Array:
        return guarded(np.zeros(shape, dtype), at_end)

    model = attending_loop(None, start="P", numbered=True, stops=True)
    plain = qg.compile(model, num_threads=1)
    compiled = qg.compile(model, num_threads=1)
    cases = [feeds_of(model, P=p, trips=n, stop=300) for p, n in ((1, 70), (3, 130), (15, 20))]
    results = [plain.run(None, feeds) for feeds in cases]
    monkeypatch.setattr(trip_blocks, "aligned_bytes", between_pages)
    monkeypatch.setattr(trip_blocks, "uninitialized", of_shape)
    for feeds, outputs in zip(cases, results, strict=True):
        for one, other in zip(compiled.run(None, feeds), outputs, strict=True):
            np.testing.assert_array_equal(one, other)


# -- loops in onnxruntime


def with_node(model: onnx.ModelProto, *nodes: onnx.NodeProto) -> onnx.ModelProto:
    """The model with more nodes at the end of the loop's body, in front of its state."""
    body = next(a.g for a in model.graph.node[0].attribute if a.name == "body")
    for node in body.node:
        if node.output[0] == "next":
            node.output[0] = "before"
    body.node.extend(nodes)
    return model


def test_the_report_says_why_a_body_is_not_compiled() -> None:
    node = helper.make_node
    model = with_node(
        attending_loop(70),
        node("NonZero", ["before"], ["places"]),
        node("Cast", ["places"], ["numbers"], to=1),
        node("ReduceMax", ["numbers"], ["largest"], keepdims=0),
        node("Mul", ["largest", "little"], ["part"]),
        node("Add", ["before", "part"], ["next"]),
    )
    compiled = qg.compile(model, num_threads=1)
    feeds = feeds_of(model)
    for _ in range(2):
        assert_close(compiled.run(None, feeds), by_onnxruntime(model, feeds))
    assert loop_of(compiled).reasons
    (entry,) = [node for node in compiled.report.fallback if node.op == "Loop"]
    assert "NonZero" in entry.reason
    assert not any("the body of the loop" in note for note in compiled.report.notes)


def test_an_index_out_of_range_is_an_error_in_any_trip() -> None:
    node = helper.make_node
    model = with_node(
        attending_loop(None, stops=True),
        node("Mod", ["trip", "stop"], ["place"]),
        node("Gather", ["table", "place"], ["part"]),
        node("Mul", ["before", "part"], ["next"]),
    )
    model.graph.initializer.append(
        onnx.numpy_helper.from_array(np.linspace(0.5, 1, 50, dtype=np.float32), "table")
    )
    compiled = qg.compile(model, num_threads=1)
    assert_runs(compiled, model, feeds_of(model, trips=100, stop=50))
    with pytest.raises(OutOfRangeError):
        compiled.run(None, feeds_of(model, trips=100, stop=90))
    assert_runs(compiled, model, feeds_of(model, trips=100, stop=50))


# -- int8


SAMPLES = 4


@cache
def quantized(threads: int) -> Any:
    model = attending_loop(None, start="P", behind=True)
    samples = [feeds_of(model, n, P=1 + n, trips=80) for n in range(SAMPLES)]
    return qg.quantize_and_compile(
        model, samples, num_threads=threads, verify=False, progress=False
    )


def run_from_the_first_trip(
    compiled: Any, feeds: Mapping[str, Array], monkeypatch: pytest.MonkeyPatch
) -> tuple[list[Array], Progress]:
    """The outputs, and the loop before its first trip."""
    seen: list[Progress] = []
    begin = CompiledLoop.begun

    def begun(self: CompiledLoop, values: Mapping[str, Any]) -> Progress:
        seen.append(begin(self, values))
        return seen[-1].copy()

    with monkeypatch.context() as patch:
        patch.setattr(CompiledLoop, "begun", begun)
        results = compiled.run(None, feeds)
    (progress,) = seen
    return results, progress


@pytest.mark.slow_variants
@pytest.mark.parametrize("trips", [1, 2, 66])
def test_int8_trips_are_those_of_the_interpreter(
    trips: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = quantized(1)
    feeds = feeds_of(attending_loop(None, start="P"), 7, P=2, trips=trips)
    (final, keys, _), progress = run_from_the_first_trip(compiled, feeds, monkeypatch)
    body = loop_of(compiled).int8
    assert body is not None
    while progress.goes_on:
        inputs = progress.feeds
        graph = body.specialisations.graph_for({n: a.shape for n, a in inputs.items()})
        names = [name for name, _ in graph.outputs]
        progress.proceed(dict(zip(names, qg.interpret(graph, inputs), strict=True)))
    np.testing.assert_array_equal(final, progress.carried[0])
    np.testing.assert_array_equal(keys, progress.carried[1])


def test_a_saved_model_gives_the_same_integers(tmp_path: Path) -> None:
    compiled = quantized(1)
    compiled.save(tmp_path / "m.qgm")
    loaded = qg.load(tmp_path / "m.qgm", num_threads=2)
    loaded.save(tmp_path / "again.qgm")
    again = qg.load(tmp_path / "again.qgm", num_threads=1)
    for trips, start in ((70, 3), (130, 1), (5, 8)):
        feeds = feeds_of(attending_loop(None, start="P"), 3, P=start, trips=trips)
        results = compiled.run(None, feeds)
        for model in (loaded, again):
            for one, other in zip(model.run(None, feeds), results, strict=True):
                np.testing.assert_array_equal(one, other)
    assert loop_of(again).is_int8


def test_int8_is_near_float() -> None:
    model = attending_loop(None, start="P", behind=True)
    feeds = feeds_of(model, 9, P=2, trips=100)
    (*_, actual), (*_, expected) = quantized(1).run(None, feeds), by_onnxruntime(model, feeds)
    assert np.linalg.norm(actual - expected) < 0.3 * np.linalg.norm(expected)
    assert any("in int8, calibrated" in n and "loop" in n for n in quantized(1).report.notes)


def is_body_float(compiled: Any) -> float:
    """1 if the body of the model's loop is float, else 0."""
    compiled.run(None, feeds_of(attending_loop(70, behind=True)))
    return float(not loop_of(compiled).is_int8)


@pytest.mark.slow_variants
@pytest.mark.parametrize(
    ("validation", "note"),
    [
        (None, "in int8, calibrated on the trips that samples make"),
        (is_body_float, "in float: in int8 the drop would be 1"),
    ],
)
def test_a_contract_decides_on_the_body(validation: Any, note: str) -> None:
    model = attending_loop(70, behind=True)
    compiled = qg.quantize_and_compile(
        model,
        [feeds_of(model)],
        max_drop=0.9,
        validation_fn=validation,
        verify=False,
        progress=False,
        num_threads=1,
    )
    assert is_body_float(compiled) == ("float" in note)
    (actual,) = [note for note in compiled.report.notes if "the body of the loop" in note]
    assert actual.endswith(note)


def test_a_model_of_loops_whose_results_have_plain_sizes_is_int8() -> None:
    model = attending_loop(None)
    del model.graph.output[1:]
    samples = [feeds_of(model, seed, trips=3) for seed in range(4)]
    compiled = qg.quantize_and_compile(model, samples, effort="fast", num_threads=1, progress=False)
    assert isinstance(compiled, qg.CompiledModel)
    assert "is compiled as a model of its own, in int8" in " ".join(compiled.report.notes)

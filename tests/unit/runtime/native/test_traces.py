"""Timelines: every kernel once, by thread; stages; calls of onnxruntime; files that hold them."""

from __future__ import annotations

import gc
import json
import weakref
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import quantglow as qg
from quantglow.runtime.native import tracing as call_trace
from quantglow.runtime.native import tracing as recorded_walk
from quantglow.runtime.native.program_table import ProgramTable
from quantglow.support.arrays import Array
from quantglow.support.timeline import (
    FOREIGN,
    KERNEL,
    STAGE,
    WAITING,
    Event,
    Trace,
    recording,
    span,
)
from tests.support.embedded import network
from tests.unit.importer.onnx.onnx_models import floats

MNIST, LINES = network("mnist"), network("ppocr_cls")


def compiled(batch: int, threads: int) -> tuple[qg.CompiledModel, dict[str, Array]]:
    """A network at a fixed batch, and feeds."""
    shape = (batch, *LINES.images.shape[1:])
    model = qg.compile(LINES.path, input_shapes={LINES.input_name: shape}, num_threads=threads)
    assert isinstance(model, qg.CompiledModel)
    return model, {LINES.input_name: np.resize(LINES.images, shape)}


def events_in(path: Path, category: str) -> list[dict[str, Any]]:
    """The events of a category in a file."""
    return [e for e in json.loads(path.read_text())["traceEvents"] if e.get("cat") == category]


def table_of(model: qg.CompiledModel) -> ProgramTable:
    """The table of a model, or of a piece of its batch."""
    executable: Any = model.build.executable
    table: ProgramTable = getattr(executable, "piece", executable).table
    return table


def items_of(model: qg.CompiledModel) -> list[int]:
    """The items of each row of its table."""
    executable: Any = model.build.executable
    items: list[int] = executable.binding.items[: executable.table.count].tolist()
    return items


@pytest.mark.slow_variants
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("batch", [1, 16])
def test_a_trace_has_every_kernel(batch: int, threads: int, tmp_path: Path) -> None:
    model, feeds = compiled(batch, threads)
    results = model.run(None, feeds)
    for value, array in zip(model.trace(feeds, tmp_path / "t"), results, strict=True):
        np.testing.assert_array_equal(value, array)
    kernels = events_in(tmp_path / "t", KERNEL)
    pieces = getattr(model.build.executable, "pieces", 1)
    names = {call.name for call in table_of(model).calls}
    assert Counter(e["name"] for e in kernels).keys() == names
    items = Counter[str]()
    for event in kernels:
        items[event["args"]["kernel"]] += event["args"]["items"]
    assert all(count % pieces == 0 for count in items.values())
    assert len({event["tid"] for event in kernels}) <= threads
    assert all(event["dur"] >= 0 and event["ts"] >= 0 for event in kernels)


def test_runs_after_a_trace_are_as_before(tmp_path: Path) -> None:
    model, feeds = compiled(1, 2)
    (traced,) = model.trace(feeds, tmp_path / "t")
    written = (tmp_path / "t").read_bytes()
    np.testing.assert_array_equal(model.run(None, feeds)[0], traced)
    assert (tmp_path / "t").read_bytes() == written


@pytest.mark.slow_variants
@pytest.mark.parametrize("room", [1, 4096])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_every_run_of_a_block_has_its_kernels(
    threads: int, room: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the log has no room for a second run."""
    monkeypatch.setattr(call_trace, "LOG_EVENTS", room)
    monkeypatch.setattr(recorded_walk, "PAGE_WORDS", room)
    model, feeds = compiled(1, threads)
    (expected,) = model.run(None, feeds)
    items = Counter[str]()
    for call, count in zip(table_of(model).calls, items_of(model), strict=True):
        items[call.name] += count
    for runs in (3, 1):
        with qg.tracing(tmp_path / "t"):
            for _ in range(runs):
                np.testing.assert_array_equal(model.run(None, feeds)[0], expected)
        counts = Counter[str]()
        for event in events_in(tmp_path / "t", KERNEL):
            counts[event["name"]] += event["args"]["items"]
        assert counts == {name: runs * count for name, count in items.items()}
        model.run(None, feeds)


def test_the_kernels_of_one_thread_follow_each_other(tmp_path: Path) -> None:
    """In the order of the table: each begins where the one before ends."""
    model, feeds = compiled(1, 1)
    model.trace(feeds, tmp_path / "t")
    kernels = sorted(events_in(tmp_path / "t", KERNEL), key=lambda event: float(event["ts"]))
    assert [event["name"] for event in kernels] == [call.name for call in table_of(model).calls]
    for before, after in pairwise(kernels):
        assert after["ts"] == pytest.approx(before["ts"] + before["dur"], abs=1e-3)


def test_runs_of_several_threads_are_apart(tmp_path: Path) -> None:
    model, feeds = compiled(1, 1)
    runs, names = 4, [call.name for call in table_of(model).calls]
    model.run(None, feeds)
    with qg.tracing(tmp_path / "t"), ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(copy_context().run, model.run, None, feeds) for _ in range(runs)]
        assert len({future.result()[0].tobytes() for future in asked}) == 1
    kernels = events_in(tmp_path / "t", KERNEL)
    assert Counter(event["name"] for event in kernels) == {
        name: runs * count for name, count in Counter(names).items()
    }
    assert 1 <= len({event["tid"] for event in kernels}) <= 2


LOOP = """<ir_version: 8, opset_import: ["": 17]> g (float[4] x) => (float[4] y) {
  n = Constant <value_int: int = 300> ()
  r = Relu (x)
  y = Loop (n, , r) <body = b (int64 i, bool on, float[4] s) => (bool still, float[4] t) {
    still = Identity (on) t = Tanh (s)
  }>
}"""


def test_a_loop_is_one_kernel(tmp_path: Path) -> None:
    model = qg.compile(onnx.parser.parse_model(LOOP), num_threads=1)
    assert isinstance(model, qg.CompiledModel)
    model.trace({"x": floats(4)}, tmp_path / "t")
    kernels = events_in(tmp_path / "t", KERNEL)
    assert [event["args"]["op"] for event in kernels] == [c.op for c in table_of(model).calls]
    assert [event["args"]["op"] for event in kernels].count("repeat") == 1


def test_a_model_keeps_no_trace_alive() -> None:
    model, feeds = compiled(1, 1)
    with recording() as trace:
        model.run(None, feeds)
    trace.groups.clear()
    gone = weakref.ref(trace)
    del trace
    gc.collect()
    assert gone() is None


def test_other_traces_get_no_events_of_a_block(tmp_path: Path) -> None:
    model, feeds = compiled(1, 1)
    with qg.tracing(tmp_path / "outer"):
        model.run(None, feeds)
        model.trace(feeds, tmp_path / "inner")
        model.run(None, feeds)
    inner, outer = (events_in(tmp_path / name, KERNEL) for name in ("inner", "outer"))
    assert len(outer) == 3 * len(inner)  # two runs, and the one before that of ``trace``


@pytest.mark.parametrize("threads", [1, 2])
def test_records_are_kept_between_the_runs_of_a_table(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, feeds = compiled(16, threads)
    with recording():
        model.run(None, feeds)
    monkeypatch.setattr(call_trace.TracedTable, "of", None)
    monkeypatch.setattr(recorded_walk, "RecordedWalk", None)
    with recording() as trace:
        model.run(None, feeds)
    assert trace.to_json()["traceEvents"]


def test_kernels_of_a_thread_do_not_overlap(tmp_path: Path) -> None:
    model, feeds = compiled(1, 2)
    model.trace(feeds, tmp_path / "t")
    end: dict[int, float] = {}
    events = [*events_in(tmp_path / "t", KERNEL), *events_in(tmp_path / "t", WAITING)]
    for event in sorted(events, key=lambda e: float(e["ts"])):
        assert event["ts"] >= end.get(event["tid"], 0.0) - 1e-3
        end[event["tid"]] = event["ts"] + event["dur"]


@pytest.mark.slow
def test_programs_for_all_shapes_are_traced(tmp_path: Path) -> None:
    model = qg.compile(LINES.path, num_threads=1)
    images = [LINES.images[:size] for size in (1, 2, 3)]
    for array in images:
        model.trace({LINES.input_name: array}, tmp_path / "t")
        kernels = events_in(tmp_path / "t", KERNEL)
        assert {"Conv"} < {event["args"]["op"] for event in kernels}
        assert all(event["args"]["kernel"] for event in kernels)


def test_onnxruntimes_part_is_an_event(tmp_path: Path) -> None:
    text = (
        '<ir_version: 8, opset_import: ["": 18]> g (float[2, 3] x) => (int64[n, m] y) '
        "{ a = Relu (x) y = NonZero (a) }"
    )
    model = qg.compile(onnx.parser.parse_model(text))
    model.trace({"x": floats(2, 3)}, tmp_path / "t")
    assert events_in(tmp_path / "t", FOREIGN)


def test_the_stages_of_a_quantization_are_events(tmp_path: Path) -> None:
    with qg.tracing(tmp_path / "t"):
        qg.quantize_and_compile(MNIST.path, MNIST.images[:4], progress=False)
    names = [event["name"] for event in events_in(tmp_path / "t", STAGE)]
    assert {"import", "profile", "prepare", "quantize"} <= set(names)


def test_a_block_that_fails_leaves_its_trace(tmp_path: Path) -> None:
    with pytest.raises(KeyError), qg.tracing(tmp_path / "t"), span("stage"):
        raise KeyError
    (event,) = events_in(tmp_path / "t", STAGE)
    assert event["name"] == "stage"


def test_a_file_that_cannot_be_written_is_refused_first(tmp_path: Path) -> None:
    done = []
    with (
        pytest.raises(qg.FileFormatError, match="cannot write"),
        qg.tracing(tmp_path / "no folder" / "t"),
    ):
        done.append(1)
    assert not done


@pytest.mark.slow_variants
@pytest.mark.parametrize("path", [None, 3, b"\0"])
def test_other_paths_are_refused(path: Any) -> None:
    model, feeds = compiled(1, 1)
    with pytest.raises(qg.OptionError, match="path"):
        model.trace(feeds, path)


def test_threads_have_small_numbers_and_names() -> None:
    trace = Trace(started=1.0)
    trace.names[77] = "worker"
    trace.add(Event("b", STAGE, 99, 1.5, 2.0))
    trace.add(Event("a", STAGE, 77, 1.25, 1.5, {"items": 3}))
    named, other, a, b = trace.to_json()["traceEvents"]
    assert (named["args"]["name"], other["args"]["name"]) == ("worker", "thread 1")
    assert (a["name"], a["tid"], a["ts"], a["dur"], a["args"]) == (
        "a",
        0,
        250e3,
        250e3,
        {"items": 3},
    )
    assert (b["tid"], b["ts"], b["dur"]) == (1, 500e3, 500e3)

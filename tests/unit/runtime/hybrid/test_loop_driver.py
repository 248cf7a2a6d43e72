"""Loops of graphs that go to the end of their model, trip after trip by quantglow's driver."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest

import quantglow as qg
from quantglow.api.models.programs import loop_driver
from quantglow.evaluation.macs import count_by_run
from quantglow.importer.onnx import open_model
from quantglow.ir.graph.family import Case, LateResults
from quantglow.ort.products import count_products
from quantglow.runtime.hybrid.loop_driver import LoopDriver
from quantglow.runtime.programs.build import Compiler
from quantglow.runtime.shapes.late_programs import LatePrograms
from quantglow.support.arrays import Array
from quantglow.transforms.float import optimize
from tests.support.attending_loop import attending_loop, feeds_of
from tests.support.computed_loops import (
    FLOAT,
    INTEGER,
    WIDTH,
    body_of,
    growing_feeds,
    growing_loop,
    model_of,
    node,
)
from tests.support.late_models import BUILDERS
from tests.unit.importer.onnx.onnx_models import by_onnxruntime


def programs_of(model: onnx.ModelProto, threads: int = 1, **options: Any) -> LatePrograms:
    """The programs of a model, with a driver of its loops."""
    source, compiler = open_model(model), Compiler.of(num_threads=threads, **options)
    driven = replace(compiler, drivers=(loop_driver(compiler),))
    return LatePrograms(
        source.signature, lambda c: optimize(source.at(c, LateResults.SYMBOLIC)), driven
    )


def driver_of(programs: LatePrograms) -> LoopDriver:
    (driver,) = programs.compiler.drivers
    assert isinstance(driver, LoopDriver)
    return driver


def run(programs: LatePrograms, feeds: Mapping[str, Array]) -> list[Array]:
    case = Case.of({name: array.shape for name, array in feeds.items()})
    return programs.executable(case).run(feeds)


def agree(programs: LatePrograms, model: onnx.ModelProto, feeds: Mapping[str, Array]) -> None:
    """The programs give what onnxruntime gives."""
    for one, other in zip(run(programs, feeds), by_onnxruntime(model, feeds), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def backends(programs: LatePrograms) -> set[str]:
    return {segment.backend.name for p in programs.programs for segment in p.segments}


STREAM = (3, 0, 1, 2, 70, 0, 3, 1, 130, 2, 64)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("conditional", [False, True])
def test_a_stream_of_trips_and_sizes(threads: int, conditional: bool) -> None:
    model = growing_loop("rows", conditional=conditional)
    programs = programs_of(model, threads)
    for seed, trips in enumerate(STREAM):
        agree(programs, model, growing_feeds(trips, 1 + seed % 3, seed))
    assert backends(programs) == {"llvm", "loop driver"}
    loops = driver_of(programs)._loops.values()
    assert not any(loop.reasons for loop in loops)
    assert len(programs.programs) <= 8


def test_all_numbers_of_threads_give_the_same_bits() -> None:
    model = growing_loop("rows")
    each = [programs_of(model, threads) for threads in (1, 2, 3)]
    for trips in (2, 40, 1, 0):
        feeds = growing_feeds(trips, 5, trips)
        first, *others = (run(programs, feeds) for programs in each)
        for results in others:
            for one, other in zip(results, first, strict=True):
                np.testing.assert_array_equal(one, other)


def test_threads_may_share_a_program() -> None:
    model = growing_loop("rows")
    programs = programs_of(model)
    cases = [growing_feeds(3 + n % 4, 2 + n % 3, n) for n in range(12)]
    expected = [run(programs, feeds) for feeds in cases]
    actual: dict[int, list[Array]] = {}

    def call(number: int) -> None:
        actual[number] = run(programs, cases[number])

    workers = [threading.Thread(target=call, args=(n,)) for n in range(len(cases))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for number, outputs in enumerate(expected):
        for one, other in zip(actual[number], outputs, strict=True):
            np.testing.assert_array_equal(one, other)


def test_a_decoder_over_its_own_history() -> None:
    model = attending_loop(None, start="P", behind=True, numbered=True)
    programs = programs_of(model)
    for start, trips in ((3, 3), (1, 1), (2, 200), (4, 1), (5, 64)):
        agree(programs, model, feeds_of(model, trips, P=start, trips=trips))


def test_stacked_values_of_no_trip_have_their_rank() -> None:
    """onnxruntime does not know it, and multiplies no vector without elements."""
    model = attending_loop(None, start="P", behind=True)
    programs = programs_of(model)
    for trips in (2, 0, 3):
        _, _, y = run(programs, feeds_of(model, P=2, trips=trips))
        assert y.shape == (trips, 1, 1, 16)


def test_a_text_asks_for_trips() -> None:
    late = BUILDERS["loop"]()
    programs = programs_of(late.model)
    for feeds in late.distinct():
        agree(programs, late.model, feeds)


def nested_loop() -> onnx.ModelProto:
    """A Loop whose body has an If and a Loop of a known number of trips, and reads a value from
    outside in each; then one that takes its result, and one of the computed sizes."""
    inner = body_of(
        [node("MatMul", ["part", "w"], ["product"]), node("Add", ["product", "r"], ["sum"]),
         node("Tanh", ["sum"], ["after"])],
        {"part": FLOAT},
        {"after": FLOAT},
        prefix="inner ",
    )  # fmt: skip
    value = onnx.helper.make_tensor_value_info
    branches = {
        "then_branch": onnx.helper.make_graph(
            [node("Add", ["state", "r"], ["then"])], "then", [], [value("then", FLOAT, None)]
        ),
        "else_branch": onnx.helper.make_graph(
            [node("Neg", ["state"], ["else"])], "else", [], [value("else", FLOAT, None)]
        ),
    }
    nodes = [
        node("Less", ["trip", "two"], ["is early"]),
        node("If", ["is early"], ["chosen"], **branches),
        node("Loop", ["three", "", "chosen"], ["next"], body=inner),
        node("Concat", ["rows", "next"], ["more"], axis=0),
    ]
    body = body_of(nodes, {"state": FLOAT, "rows": FLOAT}, {"next": FLOAT, "more": FLOAT})
    second = body_of(
        [node("MatMul", ["all", "w"], ["turned"]), node("Tanh", ["turned"], ["later"]),
         node("Concat", ["seen", "all"], ["longer"], axis=0)],
        {"all": FLOAT, "seen": FLOAT},
        {"later": FLOAT, "longer": FLOAT},
        prefix="second ",
    )  # fmt: skip
    outer = [
        node("Relu", ["x"], ["r"]),
        node("Loop", ["trips", "", "r", "r"], ["last", "grown"], body=body),
        node("Loop", ["times", "", "grown", "grown"], ["late", "twice"], body=second),
        node("MatMul", ["twice", "w"], ["y"]),
    ]
    constants = {
        "w": np.random.default_rng(2).normal(size=(WIDTH, WIDTH)).astype(np.float32) / 3,
        "two": np.array(2),
        "three": np.array(3),
    }
    inputs = {"x": (FLOAT, ["rows", WIDTH]), "trips": (INTEGER, []), "times": (INTEGER, [])}
    outputs = {"last": FLOAT, "late": FLOAT, "y": FLOAT}
    return model_of(outer, inputs, outputs, constants)


def test_loops_behind_loops_with_branches_and_loops_inside() -> None:
    model = nested_loop()
    programs = programs_of(model, 2)
    rng = np.random.default_rng(0)
    for rows, trips, times in ((2, 3, 2), (1, 1, 1), (3, 0, 4), (2, 5, 0), (2, 0, 0), (1, 7, 3)):
        x = rng.normal(size=(rows, WIDTH)).astype(np.float32)
        feeds = {"x": x, "trips": np.array(trips), "times": np.array(times)}
        agree(programs, model, feeds)
    assert not any(loop.reasons for loop in driver_of(programs)._loops.values())


def test_one_run_gives_all_results_of_a_loop() -> None:
    programs = programs_of(growing_loop("rows"))
    run(programs, growing_feeds(3))
    for program in programs.programs:
        driven = [s for s in program.segments if s.backend.name == "loop driver"]
        assert [sorted(n.name for n in s.nodes) for s in driven] == [["all", "last", "states"]]


def test_equal_loops_of_all_programs_are_one() -> None:
    programs = programs_of(growing_loop(3))
    for trips in (3, 0, 1, 5):
        run(programs, growing_feeds(trips))
    assert len(programs.programs) > 1
    assert len(driver_of(programs)._loops) == 1


def test_onnxruntime_runs_a_body_that_is_not_compiled() -> None:
    body = body_of(
        [
            node("NonZero", ["state"], ["places"]),
            node("Cast", ["places"], ["numbers"], to=FLOAT),
            node("ReduceMax", ["numbers"], ["most"], keepdims=0),
            node("Add", ["state", "most"], ["next"]),
        ],
        {"state": FLOAT},
        {"next": FLOAT},
    )
    nodes = [node("Relu", ["x"], ["r"]), node("Loop", ["trips", "", "r"], ["y"], body=body)]
    inputs = {"x": (FLOAT, ["rows", 4]), "trips": (INTEGER, [])}
    model = model_of(nodes, inputs, {"y": FLOAT})
    compiled = qg.compile(model, num_threads=1)
    for trips in (2, 0, 1):
        feeds = {"x": np.eye(3, 4, dtype=np.float32), "trips": np.array(trips)}
        for one, other in zip(compiled.run(None, feeds), by_onnxruntime(model, feeds), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5)
    assert any("NonZero" in entry.reason for entry in compiled.report.fallback)


def test_the_reference_backend_makes_trips_too() -> None:
    model = growing_loop("rows")
    programs = programs_of(model, backend="reference")
    for trips in (2, 0, 3):
        agree(programs, model, growing_feeds(trips))


def test_an_observer_is_shown_all_products() -> None:
    model = growing_loop("rows")
    compiled = qg.compile(model, num_threads=1)
    for trips in (3, 5):
        feeds = growing_feeds(trips)
        expected = count_products(model.SerializeToString(), feeds)
        assert count_by_run(lambda f=feeds: compiled.run(None, f)).total == expected


def test_a_model_of_free_sizes_runs_as_one_program() -> None:
    model = growing_loop("rows")
    compiled = qg.compile(model, num_threads=1)
    for trips, rows in ((3, 3), (0, 2), (2, 5), (7, 1)):
        feeds = growing_feeds(trips, rows)
        for one, other in zip(compiled.run(None, feeds), by_onnxruntime(model, feeds), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
    assert compiled.report.fallback == ()
    assert any("all_0" in text for p in compiled.report.programs for text in p.conditions)

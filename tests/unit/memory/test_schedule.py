"""``schedule="memory"`` wherever users may ask for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import quantglow as qg
from quantglow.cli.main import main
from quantglow.codegen.llvm.targets import level_target
from quantglow.evaluation.footprint import Footprint
from quantglow.ir.graph.graph import Graph
from quantglow.memory.planning import plan_program
from quantglow.runtime.programs.build import Compiler
from tests.support.branching_network import branching_model
from tests.support.combinations import mark_slow

X = np.random.default_rng(1).standard_normal((1, 8, 12, 12)).astype(np.float32)


def arena_nbytes(compiled: Any) -> int:
    (program,) = compiled.build.programs
    return program.plan.peak_nbytes  # type: ignore[no-any-return]


def planned_nbytes(graph: Graph, target: str, schedule: str) -> int:
    return plan_program(graph, level_target(target), schedule=schedule).plan.peak_nbytes


@pytest.fixture(scope="module")
def int8() -> Graph:
    graph = qg.import_model(branching_model())
    return qg.quantize(graph, qg.profile(graph, [X], progress=False))


@pytest.mark.parametrize("backend", ["llvm", "reference"])
def test_a_search_needs_less_and_gives_the_same_floats(backend: str) -> None:
    model = branching_model()
    fast, memory = (
        qg.compile(model, num_threads=1, backend=backend, schedule=schedule)
        for schedule in ("fast", "memory")
    )
    assert arena_nbytes(memory) < 0.6 * arena_nbytes(fast)
    assert memory(X).tobytes() == fast(X).tobytes()


@pytest.mark.parametrize("threads", [1, 2])
def test_a_search_gives_the_same_integers(int8: Graph, threads: int) -> None:
    fast, memory = (
        qg.compile(int8, num_threads=threads, schedule=schedule) for schedule in ("fast", "memory")
    )
    assert arena_nbytes(memory) < arena_nbytes(fast)
    assert memory(X).tobytes() == fast(X).tobytes()


def test_a_saved_model_is_searched_where_it_is_loaded(int8: Graph, tmp_path: Path) -> None:
    path = tmp_path / "m.qgm"
    qg.compile(int8, num_threads=1).save(path)
    fast, memory = (qg.load(path, num_threads=1, schedule=way) for way in ("fast", "memory"))
    assert arena_nbytes(memory) < arena_nbytes(fast)
    assert memory(X).tobytes() == fast(X).tobytes()


def test_quantize_and_compile_takes_it() -> None:
    fast, memory = (
        qg.quantize_and_compile(
            branching_model(), [X], verify=False, progress=False, num_threads=1, schedule=way
        )
        for way in ("fast", "memory")
    )
    assert arena_nbytes(memory) < arena_nbytes(fast)


def test_a_program_for_all_shapes_stays_valid() -> None:
    model = branching_model(("batch", 8, "height", "width"))
    fast, memory = (
        qg.compile(model, num_threads=1, schedule=schedule) for schedule in ("fast", "memory")
    )
    for shape in ((1, 8, 12, 12), (2, 8, 7, 9), (3, 8, 20, 4)):
        x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        assert memory(x).tobytes() == fast(x).tobytes()


def test_the_kernels_of_a_search_are_loaded_ahead_without_one(int8: Graph) -> None:
    compiler = Compiler.of(num_threads=1, schedule="memory")
    compiler.load_kernels(int8)
    assert compiler.compile(int8).programs[0].plan.is_optimal


@pytest.mark.parametrize("call", [qg.compile, qg.load, Compiler.of])
def test_unknown_schedules_are_refused(call: Any, int8: Graph, tmp_path: Path) -> None:
    path = tmp_path / "m.qgm"
    qg.compile(int8).save(path)
    first = {qg.compile: int8, qg.load: path, Compiler.of: "native"}[call]
    with pytest.raises(qg.OptionError, match=r"schedule must be one of.*did you mean 'memory'"):
        call(first, schedule="memry")


def test_unknown_schedules_of_bundles_are_refused(int8: Graph, tmp_path: Path) -> None:
    with pytest.raises(qg.OptionError, match="schedule must be one of"):
        qg.compile(int8).export_bundle(tmp_path / "bundle", schedule="small")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "asked", "used"),
    [
        ("cortex-m4", None, "memory"),
        pytest.param("cortex-m55", "fast", "fast", marks=pytest.mark.slow),
        pytest.param("x86-64", None, "fast", marks=pytest.mark.slow),
        pytest.param("neon", "memory", "memory", marks=pytest.mark.slow),
    ],
)
def test_bundles_for_microcontrollers_are_searched(
    int8: Graph, tmp_path: Path, target: str, asked: str | None, used: str
) -> None:
    qg.compile(int8).export_bundle(tmp_path, name="net", target=target, schedule=asked)
    manifest = json.loads((tmp_path / "net.json").read_text())
    other = "fast" if used == "memory" else "memory"
    expected, others = (planned_nbytes(int8, target, way) for way in (used, other))
    assert manifest["arena"]["nbytes"] == Footprint.of(int8, target, asked).arena_nbytes
    assert Footprint.of(int8, target, asked).plan.peak_nbytes == expected != others


def test_a_footprint_says_what_a_search_would_save(int8: Graph) -> None:
    least = planned_nbytes(int8, "x86-64", "memory")
    text = str(Footprint.of(int8, "x86-64"))
    assert f"every order of execution needs {least}\nschedule memory: arena {least} bytes" in text


def test_a_footprint_says_that_it_is_optimal(int8: Graph) -> None:
    text = str(Footprint.of(int8, "cortex-m4"))
    assert "optimal: no order of execution needs less" in text
    assert "schedule memory" not in text


@pytest.mark.parametrize(
    "command", mark_slow(["compile", "inspect", "bundle", "run", "quantize"], {"inspect", "run"})
)
def test_commands_take_it(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, data, built = tmp_path / "m.onnx", tmp_path / "x.npz", tmp_path / "made"
    onnx.save(branching_model(), model)
    np.savez(data, x=X)
    further = {
        "compile": ["--output", f"{built}.qgm"],
        "inspect": ["--stage", "memory"],
        "bundle": ["--output", str(built)],
        "run": ["--inputs", str(data)],
        "quantize": ["--calibration-data", str(data), "--output", f"{built}.qgm"],
    }
    assert main([command, str(model), "--schedule", "memory", *further[command]]) == 0
    assert capsys.readouterr().out

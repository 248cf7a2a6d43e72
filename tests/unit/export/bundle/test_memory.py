"""A bundle touches its own bytes only, and no output depends on bytes that nobody wrote."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import quantglow as qg
from quantglow.codegen.llvm.emitted import EmittedProgram
from quantglow.codegen.llvm.targets import LEVELS, runs_here
from quantglow.export.bundle import exporter as bundles
from quantglow.export.bundle.exporter import BundleOptions, emit, export_bundle
from quantglow.export.bundle.program_object import program_object
from quantglow.ir.graph.graph import Graph
from quantglow.quantization.converter import with_integer_inputs
from tests.support.bundled import COMPILERS, built, interpreted, written
from tests.support.combinations import covering
from tests.support.embedded import MAKERS, network
from tests.support.levels import needs_of_levels_here
from tests.support.pinned import NAMES, feeds_of, hashes, pinned
from tests.support.small_network import small_model, small_samples

VALGRIND = ("valgrind", "-q", "--error-exitcode=9", "--track-origins=yes")
UNKNOWN_TO_VALGRIND = ("avx512", "avxvnni")
"""Beginnings of features whose instructions valgrind does not run."""
KNOWN_TO_VALGRIND = tuple(
    name
    for name, needs in needs_of_levels_here().items()
    if not any(need.startswith(UNKNOWN_TO_VALGRIND) for need in needs)
)
HERE = tuple(name for name in LEVELS if runs_here(name))
QUICK = ("recurrent", "residual")
"""Pinned graphs that run by default: a loop, and convolutions whose rows lie in larger tensors."""
PLACES = ("start", "end")
FILLS = ("0", "85", "128", "255")

needs_compiler = pytest.mark.skipif(not COMPILERS, reason="neither gcc nor clang is installed")
needs_valgrind = pytest.mark.skipif(not shutil.which("valgrind"), reason="no valgrind")
graphs = pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in NAMES]
)
levels = pytest.mark.parametrize("level", HERE)
IN_TURN = {(QUICK[place % len(QUICK)], level) for place, level in enumerate(HERE)}


def on_levels() -> Iterator[Any]:
    """Every graph on every level; one of the quick graphs for each level by default.  Slow are a
    third of them: each graph has several levels, and each level several graphs."""
    for number, name in enumerate(NAMES):
        for place, level in enumerate(HERE):
            marks = [pytest.mark.slow]
            if (number + place) % 3:
                marks.append(pytest.mark.exhaustive)
            yield pytest.param(name, level, marks=() if (name, level) in IN_TURN else marks)


graphs_on_levels = pytest.mark.parametrize(("name", "level"), [*on_levels()])


def program_of(graph: Graph, level: str, folder: Path, weights: str = "bin") -> Path:
    """The program of a graph's bundle."""
    export_bundle(graph, folder, BundleOptions(name="net", target=level, weights=weights))
    return built(folder, COMPILERS[0])


def small_graph() -> Graph:
    """int8; convolutions of two channels, which dot products read by four."""
    compiled: Any = qg.quantize_and_compile(small_model(), small_samples(), progress=False)
    graph: Graph = compiled.graph
    return graph


@pytest.mark.slow_variants
@needs_compiler
@needs_valgrind
@pytest.mark.parametrize(("name", "level"), covering([*QUICK], KNOWN_TO_VALGRIND))
def test_outputs_depend_on_written_bytes_only(name: str, level: str, tmp_path: Path) -> None:
    """Valgrind follows each bit that nobody wrote to branches, addresses and outputs."""
    graph = pinned(name)
    feeds = feeds_of(graph, hashes()[name][0])[:1]
    program = program_of(graph, level, tmp_path)
    assert written(program, graph, feeds, "heap", runner=VALGRIND) == interpreted(graph, feeds)


@pytest.mark.slow
@needs_compiler
@needs_valgrind
@pytest.mark.parametrize("level", KNOWN_TO_VALGRIND)
@pytest.mark.parametrize("name", MAKERS)
def test_outputs_of_networks_depend_on_written_bytes_only(
    name: str, level: str, tmp_path: Path
) -> None:
    chosen = network(name)
    feeds = chosen.feeds(4)
    compiled: Any = qg.quantize_and_compile(chosen.path, feeds, progress=False)
    program = program_of(compiled.graph, level, tmp_path, "object")
    actual = written(program, compiled.graph, feeds[:1], "heap", runner=VALGRIND)
    assert actual == interpreted(compiled.graph, feeds[:1])


@pytest.mark.slow
@needs_compiler
@needs_valgrind
def test_valgrind_sees_what_is_not_cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slack behind pixels of two channels reaches the outputs, times weights of 0."""
    monkeypatch.setattr(bundles, "unwritten_blocks", lambda *_: ())
    graph, feeds = small_graph(), [{"x": small_samples()[0]}]
    program = program_of(graph, "x86-64", tmp_path)
    with pytest.raises(AssertionError, match="uninitialised"):
        written(program, graph, feeds, "heap", runner=VALGRIND)
    assert written(program, graph, feeds, "heap") == interpreted(graph, feeds)


@pytest.mark.slow_variants
@needs_compiler
@graphs_on_levels
def test_arrays_may_lie_between_guard_pages(name: str, level: str, tmp_path: Path) -> None:
    graph = pinned(name)
    feeds = feeds_of(graph, hashes()[name][0])
    program, expected = program_of(graph, level, tmp_path), interpreted(graph, feeds)
    for place in PLACES:
        assert written(program, graph, feeds, place) == expected, place


@pytest.mark.slow_variants
@needs_compiler
@levels
def test_integer_inputs_may_lie_between_guard_pages(level: str, tmp_path: Path) -> None:
    """Their pixels have two bytes: dot products of four would read beyond the last."""
    graph = with_integer_inputs(small_graph())
    feeds = [{"x": (x * 50).clip(-128, 127).astype("int8")} for x in small_samples()]
    program, expected = program_of(graph, level, tmp_path), interpreted(graph, feeds)
    for place in PLACES:
        assert written(program, graph, feeds, place) == expected, place


@pytest.mark.slow_variants
@needs_compiler
@graphs_on_levels
def test_no_output_depends_on_the_contents_of_the_arena(
    name: str, level: str, tmp_path: Path
) -> None:
    """Nor on the bytes that a bundle clears: here it does not."""
    graph = pinned(name)
    feeds = feeds_of(graph, hashes()[name][0])
    export_bundle(graph, tmp_path, BundleOptions(name="net", target=level))
    plain = replace(emit(graph, level), unwritten=())
    (tmp_path / "net.o").write_bytes(program_object("net", plain).code)
    program, expected = built(tmp_path, COMPILERS[0]), interpreted(graph, feeds)
    for fill in FILLS:
        assert written(program, graph, feeds, "heap", fill) == expected, fill


@pytest.mark.slow
@needs_compiler
def test_guard_pages_end_the_program_one_byte_too_far(tmp_path: Path) -> None:
    """An arena that is smaller than the header says."""
    graph, feeds = small_graph(), [{"x": small_samples()[0]}]
    program_of(graph, HERE[-1], tmp_path)
    produced: EmittedProgram = emit(graph, HERE[-1])
    header = tmp_path / "net.h"
    nbytes = program_object("net", produced).arena_nbytes
    text = header.read_text().replace(f"ARENA_NBYTES {nbytes}", f"ARENA_NBYTES {nbytes - 128}")
    header.write_text(text)
    program = built(tmp_path, COMPILERS[0])
    with pytest.raises(AssertionError, match="exit code -11"):
        written(program, graph, feeds, "end")

"""AArch64 under emulation computes the integers of x86 and of the interpreter."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.cross.emulated import LEVELS, QUICK, SUITE, needs_emulator, run, run_tests
from tests.fuzz.jit import hunt
from tools.integer_hashes import INTERPRETER, hashes, write

DRAWN = 12
"""Number of graphs."""

pytestmark = [needs_emulator, pytest.mark.emulated]


@pytest.fixture(scope="module")
def networks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MNIST and the classifier of PP-OCR, quantized and saved on this machine."""
    folder = tmp_path_factory.mktemp("networks")
    write(folder, ("mnist", "ppocr_cls"))
    return folder


@pytest.fixture(scope="module")
def here(networks: Path) -> dict[str, str]:
    """The hash of each network's integers, interpreted on this machine."""
    return {name: digest for name, _, digest in hashes(networks, [INTERPRETER], 1)}


def passed(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.mark.parametrize("threads", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("level", LEVELS)
def test_networks_saved_here_give_the_same_integers_there(
    level: str, threads: int, networks: Path, here: dict[str, str]
) -> None:
    show = ("-m", "tools.integer_hashes", "show", str(networks), "--threads", str(threads))
    lines = passed(run(level, *show, "--levels", level)).splitlines()
    assert {name: digest for name, _, digest in map(json.loads, lines)} == here


@pytest.mark.parametrize("level", LEVELS)
def test_a_processor_runs_its_own_level_and_all_below(level: str) -> None:
    script = "from quantglow.codegen.llvm.targets import *; print(*filter(runs_here, LEVELS))"
    better_first = ["i8mm", "dotprod", "neon", "portable"]
    assert passed(run(level, "-c", script)).split() == better_first[better_first.index(level) :]


@pytest.mark.slow
@pytest.mark.parametrize("path", SUITE)
@pytest.mark.parametrize("level", LEVELS)
def test_the_suite_passes_there(level: str, path: str) -> None:
    passed(run_tests(level, [path]))


def test_a_part_of_the_suite_passes_on_the_best_processor() -> None:
    passed(run_tests(LEVELS[-1], QUICK))


@pytest.mark.slow
def test_the_demo_runs_there() -> None:
    assert "MNIST" in passed(run("i8mm", "-m", "quantglow", "demo"))


@pytest.mark.parametrize("level", LEVELS)
def test_drawn_graphs_pass_the_jit_there(level: str) -> None:
    """A few; `python -m tests.fuzz.jit` checks many."""
    actual = hunt([level], range(DRAWN))
    assert (actual.findings, actual.counts[level] > DRAWN // 2) == ([], True)

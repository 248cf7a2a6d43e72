"""AArch64 and RISC-V under QEMU and WebAssembly in engines compute the interpreter's integers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from quantglow.codegen.llvm.builder import Builder
from quantglow.codegen.llvm.targets import level_target
from quantglow.codegen.llvm.values import FLOAT, I32, vector
from quantglow.export.bundle.object_tables import object_file
from quantglow.export.bundle.program_object import CALLS
from quantglow.interpreter import interpret
from quantglow.runtime.saved import saving
from quantglow.support.arrays import Array
from tests.cross import float_functions
from tests.fuzz.emulated import program_difference
from tests.generators.onnx_models import models
from tests.support.combinations import mark_slow
from tests.support.pinned import NAMES, digest, feeds_of, hashes, pinned
from tools.integer_hashes import feeds_of as saved_feeds
from tools.integer_hashes import write
from tools.kernel_instructions import kernels_at
from tools.other_processors import PLACES, QEMU, Program, is_installed, level_of, program_of

pytestmark = pytest.mark.emulated

NETWORKS = ("mnist", "ppocr_cls")
LEAST = np.iinfo(np.int32).min
RUN = """
define i32 @net_run(ptr %arena, ptr %inputs, ptr %outputs) nounwind {{
  %args = alloca [2 x i64], align 8
  %x = load ptr, ptr %inputs
  %y = load ptr, ptr %outputs
  %second = getelementptr i64, ptr %args, i64 1
  store ptr %y, ptr %args
  store ptr %x, ptr %second
  call void @kernel(ptr %args, i64 0, i64 {count})
  ret i32 0
}}
declare void @kernel(ptr, i64, i64)
"""


@pytest.fixture(scope="module", params=PLACES)
def place(request: pytest.FixtureRequest) -> str:
    if not is_installed(request.param):
        pytest.skip(f"no emulator of {request.param}: `make cross-setup` installs it")
    return request.param


@pytest.fixture(scope="module")
def networks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Networks quantized and saved on this machine."""
    folder = tmp_path_factory.mktemp("networks")
    write(folder, NETWORKS)
    return folder


@pytest.mark.parametrize("name", NETWORKS)
def test_real_networks_give_the_interpreter_s_integers(
    name: str, place: str, networks: Path, tmp_path: Path
) -> None:
    graph, feeds = saving.load(networks / f"{name}.qgm").graph, saved_feeds(networks, name)
    program = program_of(graph, level_of(place), tmp_path)
    actual, _ = program.run(place, [[feed[x.name] for x in graph.inputs] for feed in feeds])
    assert digest(actual) == digest([interpret(graph, feed) for feed in feeds])


@pytest.mark.parametrize("name", NAMES)
def test_saved_graphs_give_the_pinned_integers(name: str, place: str, tmp_path: Path) -> None:
    graph, (seed, expected) = pinned(name), hashes()[name]
    program = program_of(graph, level_of(place), tmp_path)
    feeds = feeds_of(graph, seed)
    actual, _ = program.run(place, [[feed[x.name] for x in graph.inputs] for feed in feeds])
    assert digest(actual) == expected


@pytest.mark.parametrize("seed", mark_slow(range(6), range(3)))
def test_drawn_graphs_give_the_interpreter_s_integers(seed: int, place: str) -> None:
    assert program_difference(models.drawn(seed), place) == ""


@pytest.mark.parametrize("place", QEMU, indirect=True)
def test_instructions_of_kernels_are_those_of_a_run(
    place: str, networks: Path, tmp_path: Path
) -> None:
    graph, feeds = saving.load(networks / "mnist.qgm").graph, saved_feeds(networks, "mnist")
    program = program_of(graph, level_of(place), tmp_path)
    sample = [[feeds[0][x.name] for x in graph.inputs]]
    once, twice = (program.run(place, sample, runs)[1] for runs in (1, 2))
    kernels = sum(kernel.instructions for kernel in kernels_at(place, networks, "mnist"))
    assert kernels == pytest.approx(twice - once, rel=1e-3)


def test_functions_of_special_values_are_those_of_this_machine(place: str, tmp_path: Path) -> None:
    program = program_of(float_functions.graph(), level_of(place), tmp_path)
    ((actual,),), _ = program.run(place, [[float_functions.SAMPLE]])
    assert float_functions.differences(actual) == []


def rounded(place: str, lanes: int, values: Array, folder: Path) -> Array:
    """``round_to_int`` of values, ``lanes`` at a time."""
    target, b = level_target(level_of(place)), Builder()
    out, x = b.kernel(2)
    with b.loop("%begin", "%end", lanes) as index:
        offset = b.mul(index, 4)
        loaded = b.load(vector(lanes, FLOAT), b.at(x, offset))
        b.store(vector(lanes, I32), target.isa.round_to_int(b, lanes, loaded), b.at(out, offset))
    built = object_file(target, [RUN.format(count=values.size), b.finish()], ["net_run"])
    kind = np.dtype(np.int32)
    ends = (values.nbytes,), ((kind, values.shape),)
    program = Program(target.name, folder, 0, *ends, sum(built.frames.values(), CALLS))
    ((actual,),), _ = program.link(built.code).run(place, [[values]])
    return actual


@pytest.mark.parametrize("lanes", [1, 4])
def test_conversions_of_processors_keep_the_promise(lanes: int, place: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    halves = np.arange(-64, 64, dtype=np.float32) / 2
    inside = np.concatenate(
        [halves, np.nextafter(halves, np.float32(9)), rng.uniform(-(2.0**31), 2.0**31 - 128, 512)],
        dtype=np.float32,
    )
    below = np.array([-(2.0**31), -3e9, -np.inf, np.nan] * 4, np.float32)
    above = np.array([2.0**31, 3e9, 1e38, np.inf] * 4, np.float32)
    actual = rounded(place, lanes, np.concatenate([inside, below, above]), tmp_path)
    expected = np.rint(inside.astype(np.float64)).astype(np.int32)
    np.testing.assert_array_equal(actual[: inside.size], expected)
    assert (actual[inside.size :][: below.size] == LEAST).all()
    beyond = actual[inside.size + below.size :]
    assert ((beyond == LEAST) | (beyond >= 2**30)).all()

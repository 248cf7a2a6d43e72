"""A bundle with all levels of a processor chooses the best that it has."""

from __future__ import annotations

import ctypes
import functools
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantglow as qg
from quantglow.codegen.llvm.targets import CHOICES, level_choice, runs_here
from quantglow.export.bundle.constants import Placement, weight_blocks
from quantglow.export.bundle.exporter import emit
from quantglow.runtime.native.buffers import aligned_bytes
from quantglow.support.errors import BackendError
from tests.support.bundled import built, each_compiler, interpreted, written
from tests.support.combinations import mark_slow
from tests.support.small_network import small_model, small_samples


def names_of(processor: str) -> list[str]:
    return [target.name for target in level_choice(processor)[0]]


NAMES = names_of("x86-64:all")
is_x86 = pytest.mark.skipif(not runs_here("x86-64"), reason="this is no x86-64")
MAIN = """
#include "net.h"
int main(void) { return net_level(); }
"""


@pytest.fixture(scope="module")
def compiled() -> Any:
    return qg.quantize_and_compile(small_model(), small_samples(), progress=False)


@pytest.fixture(scope="module")
def folder(compiled: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("levels")
    compiled.export_bundle(folder, name="net", target="x86-64:all", library="shared")
    return folder


def pointers(arrays: list[np.ndarray]) -> Any:
    return (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))


def outputs_of(compiled: Any, folder: Path, function: Any, *more: Any) -> list[np.ndarray]:
    outputs = [np.empty(node.type.shape, np.float32) for _, node in compiled.graph.outputs]
    arena = aligned_bytes(json.loads((folder / "net.json").read_text())["arena"]["nbytes"])
    arguments = ctypes.c_void_p(arena.ctypes.data), pointers([small_samples()[1]])
    assert function(*arguments, pointers(outputs), *more) == 0
    return outputs


def assert_interpreted(compiled: Any, actual: list[np.ndarray]) -> None:
    results = qg.interpret(compiled.graph, {"x": small_samples()[1]})
    for one, other in zip(actual, results, strict=True):
        np.testing.assert_array_equal(one, other)


def test_levels_are_those_without_a_permission() -> None:
    assert NAMES == ["avx512vnni", "avxvnni", "avx2", "x86-64"]
    assert names_of("aarch64:all") == ["i8mm", "dotprod", "neon"]


@pytest.mark.parametrize("processor", CHOICES)
def test_every_need_of_a_level_is_detected(processor: str) -> None:
    _, choice = level_choice(processor)
    assert {need for needs in choice.needs for need in needs} <= choice.detection.bits.keys()


@pytest.mark.slow
@is_x86
def test_the_best_level_of_this_processor_is_chosen(folder: Path) -> None:
    library = ctypes.CDLL(str(folder / "libnet.so"))
    assert NAMES[library.net_level()] == next(name for name in NAMES if runs_here(name))


@is_x86
@pytest.mark.parametrize("level", ["", *filter(runs_here, NAMES)])
def test_all_levels_compute_the_interpreters_integers(
    compiled: Any, folder: Path, level: str
) -> None:
    library = ctypes.CDLL(str(folder / "libnet.so"))
    name = "_".join(["net", *([level.replace("-", "_")] if level else []), "run"])
    assert_interpreted(compiled, outputs_of(compiled, folder, getattr(library, name)))


@is_x86
@pytest.mark.parametrize("level", [*(i for i, n in enumerate(NAMES) if runs_here(n)), 9, -1])
def test_a_level_can_be_given(compiled: Any, folder: Path, level: int) -> None:
    """The last level runs for numbers that no level has."""
    library = ctypes.CDLL(str(folder / "libnet.so"))
    at_level = functools.partial(library.net_run_at, level)
    assert_interpreted(compiled, outputs_of(compiled, folder, at_level))


@is_x86
@pytest.mark.parametrize("level", [i for i, n in enumerate(NAMES) if runs_here(n)])
def test_the_kernels_of_a_given_level_are_observed(compiled: Any, folder: Path, level: int) -> None:
    observed: list[tuple[int, int]] = []
    observer = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_int)(
        lambda user, kernel, phase: observed.append((kernel, phase))
    )
    library = ctypes.CDLL(str(folder / "libnet.so"))
    at_level = functools.partial(library.net_run_observed_at, level)
    assert_interpreted(compiled, outputs_of(compiled, folder, at_level, observer, None))
    assert observed[:2] == [(0, 0), (0, 1)]


@pytest.mark.skipif(not shutil.which("qemu-x86_64"), reason="qemu-x86_64 is not installed")
@pytest.mark.parametrize(
    ("processor", "level"),
    [("qemu64", "x86-64"), ("max", "avx2"), ("max,avx2=off", "x86-64"), ("max,bmi2=off", "x86-64")],
)
def test_levels_are_masked_by_the_processor(
    folder: Path, tmp_path: Path, processor: str, level: str
) -> None:
    (tmp_path / "main.c").write_text(MAIN)
    objects = sorted(folder.glob("*.o"))
    command = ["gcc", "-static", f"-I{folder}", "main.c", *objects, "-o", "main"]
    subprocess.run(command, cwd=tmp_path, check=True)
    ran = subprocess.run(["qemu-x86_64", "-cpu", processor, tmp_path / "main"])
    assert NAMES[ran.returncode] == level


@pytest.mark.skipif(not shutil.which("cmake"), reason="cmake is not installed")
@is_x86
def test_cmake_links_all_objects(folder: Path) -> None:
    for command in (["cmake", "-S", ".", "-B", "build"], ["cmake", "--build", "build"]):
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
    ran = subprocess.run(["build/net_example"], cwd=folder, capture_output=True, text=True)
    assert ran.stdout.startswith("net_run: 0\n")


@pytest.mark.slow
def test_aarch64_asks_linux(compiled: Any, tmp_path: Path) -> None:
    compiled.export_bundle(tmp_path, name="net", target="aarch64:all")
    assert json.loads((tmp_path / "net.json").read_text())["needs"]["system"] == ["getauxval"]
    assert {"net_i8mm.o", "net_dotprod.o", "net_neon.o"} <= {p.name for p in tmp_path.iterdir()}


@pytest.mark.slow_variants
@is_x86
@each_compiler
@pytest.mark.parametrize("weights", mark_slow(["object", "c", "bin"], {"bin"}))
def test_all_levels_share_their_weights_wherever_they_lie(
    compiled: Any, tmp_path: Path, weights: str, compiler: str
) -> None:
    compiled.export_bundle(tmp_path, name="net", target="x86-64:all", weights=weights)
    feeds = [{"x": x} for x in small_samples()]
    place = "end" if weights == "bin" else "heap"
    program = built(tmp_path, compiler)
    assert written(program, compiled.graph, feeds, place) == interpreted(compiled.graph, feeds)


@pytest.mark.slow
@is_x86
@each_compiler
def test_given_levels_read_weights_of_the_caller(
    compiled: Any, tmp_path: Path, compiler: str
) -> None:
    """Each level that runs here, one after the other."""
    compiled.export_bundle(tmp_path, name="net", target="x86-64:all", weights="bin")
    feeds = [{"x": small_samples()[1]}]
    for level in (index for index, name in enumerate(NAMES) if runs_here(name)):
        program = built(tmp_path, compiler, f"-DLEVEL={level}")
        assert written(program, compiled.graph, feeds) == interpreted(compiled.graph, feeds)


def test_equal_constants_of_levels_are_there_once(compiled: Any) -> None:
    programs = [emit(compiled.graph, name) for name in NAMES]
    blocks = weight_blocks(programs, Placement.OBJECT)
    assert len({block.nbytes for block in blocks}) == 1
    apart = sum(weight_blocks([program], Placement.OBJECT)[0].nbytes for program in programs)
    assert blocks[0].nbytes < apart
    data = b"".join(blocks[0].pieces())
    for program, block in zip(programs, blocks, strict=True):
        for index, constant in enumerate(program.constants):
            assert data[block.offset_bytes(index) :].startswith(constant.tobytes())


def test_wrong_choices_are_named(compiled: Any, tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="unknown processor"):
        compiled.export_bundle(tmp_path, target="z80:all")


REQUEST = bytes.fromhex("B89E000000 BF23100000 BE12000000 0F05 C3")
"""``arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)``"""


@pytest.mark.slow_variants
@pytest.mark.parametrize(("target", "asks"), [("amx-int8", True), ("avx512vnni", False)])
def test_bundles_ask_for_matrix_registers(
    compiled: Any, tmp_path: Path, target: str, asks: bool
) -> None:
    compiled.export_bundle(tmp_path, name="net", target=target)
    code = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert (REQUEST in code) == asks
    assert b"NET_REFUSED" in code

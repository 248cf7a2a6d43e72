"""Bundles on emulated microcontrollers compute the interpreter's integers."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

import quantglow as qg
from quantglow.export.bundle.linking import LIBRARIES
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input
from quantglow.ir.ops import Add, Mul, Softmax
from quantglow.ir.program.layout import ALIGNMENT
from quantglow.ir.types import f32
from tests.cross import float_functions
from tests.cross.cortex_m import functions
from tests.cross.cortex_m.boards import (
    BOARDS,
    COMPILER,
    FAULT,
    emulated,
    missing_tools,
    program,
    run_tool,
)
from tools.integer_hashes import feeds_of, write

NETWORKS = ("mnist", "ppocr_cls")
DIFFERENT = ("cortex-m0plus", "cortex-m4", "cortex-m55")
"""Levels whose code has little in common."""
MOST_CODE_NBYTES = 64 * 1024
"""Flash beside the weights."""

pytestmark = [
    pytest.mark.emulated,
    pytest.mark.skipif(bool(missing_tools()), reason=f"not installed: {missing_tools()}"),
]


@pytest.fixture(scope="module")
def networks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The networks, quantized and saved on this machine."""
    folder = tmp_path_factory.mktemp("networks")
    write(folder, NETWORKS)
    return folder


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("level", BOARDS)
def test_bundles_give_the_interpreters_integers(
    level: str, name: str, networks: Path, tmp_path: Path
) -> None:
    model, feeds = qg.load(networks / f"{name}.qgm"), feeds_of(networks, name)[0]
    (expected,) = qg.interpret(model.graph, feeds)
    assert expected.dtype == np.int8
    (sample,) = feeds.values()
    done = emulated(program(model, level, sample, expected, tmp_path), level)
    assert done.returncode == 0 and "equal" in done.stderr, done.stdout + done.stderr


@pytest.mark.parametrize("at", ["-1", "NET_ARENA_NBYTES"])
@pytest.mark.parametrize("level", BOARDS)
def test_one_byte_beyond_the_arena_ends_the_program(
    level: str, at: str, networks: Path, tmp_path: Path
) -> None:
    """The guards between which bundles run do guard."""
    model, feeds = qg.load(networks / "mnist.qgm"), feeds_of(networks, "mnist")[0]
    (expected,), (sample,) = qg.interpret(model.graph, feeds), feeds.values()
    path = program(model, level, sample, expected, tmp_path, 1, f"-DTOO_FAR={at}")
    done = emulated(path, level)
    assert done.returncode == FAULT and "fault" in done.stderr, done.stdout + done.stderr


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("level", BOARDS)
def test_int8_networks_need_no_library_and_little_flash(
    level: str, name: str, networks: Path, tmp_path: Path
) -> None:
    """But for the arithmetic of the compiler's own library where there is no float32."""
    qg.load(networks / f"{name}.qgm").export_bundle(tmp_path, name="net", target=level)
    undefined = set(run_tool("arm-none-eabi-nm", "-u", tmp_path / "net.o").split()) - {"U"}
    if level == "cortex-m0plus":
        undefined = {name for name in undefined if not name.startswith("__aeabi_")}
    assert undefined <= {"memcpy", "memset"}
    lines = run_tool("arm-none-eabi-size", "-A", tmp_path / "net.o")
    code = dict(re.findall(r"^(\.text\S*)\s+(\d+)", lines, re.MULTILINE))
    del code[".text.net_run_observed"]  # a linker leaves it out of programs without an observer
    assert sum(map(int, code.values())) <= MOST_CODE_NBYTES


@pytest.mark.parametrize("length", [1, 3, 63, 64, 65, 130])
@pytest.mark.parametrize("level", BOARDS)
def test_rows_of_floats_are_those_of_the_interpreter(
    level: str, length: int, tmp_path: Path
) -> None:
    """Sums in their order."""
    x = Input(name="x", tensor=f32(3, length))
    scale, bias = (
        Constant(name=name, value=np.linspace(-1, 2, length, dtype=np.float32)) for name in "gb"
    )
    scaled = Mul(name="scaled", x=Softmax(name="y", x=x), y=scale)
    model = qg.compile(Graph((x,), (("z", Add(name="z", x=scaled, y=bias)),)))
    assert isinstance(model, qg.CompiledModel)
    sample = np.random.default_rng(length).normal(0, 3, (3, length)).astype(np.float32)
    (expected,) = qg.interpret(model.graph, {"x": sample})
    done = emulated(program(model, level, sample, expected, tmp_path), level)
    assert done.returncode == 0 and "equal" in done.stderr, done.stdout + done.stderr


@pytest.mark.parametrize("level", BOARDS)
def test_flash_is_what_the_example_links(level: str, networks: Path, tmp_path: Path) -> None:
    """The example itself takes what its own object does."""
    qg.load(networks / "mnist.qgm").export_bundle(tmp_path, name="net", target=level)
    facts = json.loads((tmp_path / "net.json").read_text())
    assert facts["flash_counted"] == f"as {COMPILER} links the example"
    options = (*BOARDS[level].options, "-mthumb", "-O2", "-ffreestanding", "-ffunction-sections")
    run_tool(COMPILER, *options, "-c", tmp_path / "main.c", "-o", tmp_path / "main.o")
    linking = ("-nostdlib", "-Wl,--gc-sections,-e,main")
    objects = (tmp_path / "main.o", tmp_path / "net.o")
    run_tool(COMPILER, *options, *linking, *objects, *LIBRARIES, "-o", tmp_path / "example.elf")
    example, ours = (flash_nbytes(tmp_path / name) for name in ("example.elf", "main.o"))
    flash = facts["code_nbytes"] + facts["weights"]["nbytes"]
    assert abs(example - ours - flash) < ALIGNMENT


def flash_nbytes(path: Path) -> int:
    """Bytes of code and constants of an object or a program."""
    sizes = run_tool("arm-none-eabi-size", path).splitlines()[1].split()
    return int(sizes[0]) + int(sizes[1])


@pytest.mark.parametrize("level", BOARDS)
def test_functions_of_special_values_are_those_of_this_machine(level: str, tmp_path: Path) -> None:
    model = qg.compile(float_functions.graph())
    (expected,) = model.run(None, {"x": float_functions.SAMPLE})
    path = program(model, level, float_functions.SAMPLE, expected, tmp_path, 1, "-DSHOWN")
    done = emulated(path, level)
    assert done.returncode == 0, done.stdout + done.stderr
    actual = np.frombuffer(bytes.fromhex(done.stderr), np.float32).reshape(expected.shape)
    assert float_functions.differences(actual, flushes=level == "cortex-m55") == []


@pytest.mark.parametrize("name", functions.FUNCTIONS)
@pytest.mark.parametrize("level", DIFFERENT)
def test_int8_networks_of_functions_give_the_same_integers(
    level: str, name: str, tmp_path: Path
) -> None:
    """Gates of recurrences are float: their last bits are those of every level, not of NumPy."""
    model, sample = functions.drawn(name, seed=DIFFERENT.index(level))
    (expected,) = model.run(None, {"x": sample})
    assert expected.dtype == np.int8
    if name not in functions.GATES:
        np.testing.assert_array_equal(expected, *qg.interpret(model.graph, {"x": sample}))
    done = emulated(program(model, level, sample, expected, tmp_path), level)
    assert done.returncode == 0 and "equal" in done.stderr, done.stdout + done.stderr


def test_the_smallest_level_has_instructions_of_armv6m_only(networks: Path, tmp_path: Path) -> None:
    """Its instructions have 16 bits, but for calls, barriers and system registers."""
    qg.load(networks / "mnist.qgm").export_bundle(tmp_path, name="net", target="cortex-m0plus")
    lines = run_tool("arm-none-eabi-objdump", "-d", tmp_path / "net.o")
    long = set(re.findall(r"^ *[0-9a-f]+:\t[0-9a-f]{4} [0-9a-f]{4} *\t(\S+)", lines, re.MULTILINE))
    assert "bl" in long and long <= {"bl", "dmb", "dsb", "isb", "mrs", "msr"}

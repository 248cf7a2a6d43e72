"""Boards that QEMU emulates, programs for them, and the instructions that they execute."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from quantglow.runtime.compiled import CompiledModel
from quantglow.support.arrays import Array
from tools.cross_setup import counter

HERE = Path(__file__).parent
COMPILER, EMULATOR = "arm-none-eabi-gcc", "qemu-system-arm"
TOOLS = (COMPILER, "arm-none-eabi-size", EMULATOR)
STACK_NBYTES = 4096
LONGEST_SECONDS = 300
FAULT = 70
"""The exit code of a program that touched memory without access."""
EXECUTED = re.compile(r"executed (\d+)")


@dataclass(frozen=True)
class Board:
    """A machine of QEMU, gcc's options for its processor, and the addresses of its memory.

    ``has_pmsav8``: its memory is protected as Armv8-M does it.
    """

    machine: str
    options: tuple[str, ...]
    vectors_at: int
    code_at: int
    data_at: int
    data_nbytes: int
    has_pmsav8: bool = False


MEGABYTES = 2**20
BOARDS = {
    "cortex-m0plus": Board(
        "mps2-an385", ("-mcpu=cortex-m0plus",), 0, 0, 0x20000000, 4 * MEGABYTES
    ),
    "cortex-m4": Board(
        "mps2-an386",
        ("-mcpu=cortex-m4", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16"),
        0, 0, 0x20000000, 4 * MEGABYTES,
    ),
    "cortex-m7": Board(
        "mps2-an500",
        ("-mcpu=cortex-m7", "-mfloat-abi=hard", "-mfpu=fpv5-sp-d16"),
        0, 0, 0x20000000, 4 * MEGABYTES,
    ),
    "cortex-m55": Board(
        "mps3-an547",
        ("-mcpu=cortex-m55", "-mfloat-abi=hard"),
        0, 0x01000000, 0x20000000, 2**19, True,
    ),
    "cortex-m33": Board(
        "mps2-an505",
        ("-mcpu=cortex-m33", "-mfloat-abi=hard", "-mfpu=fpv5-sp-d16"),
        0x10000000, 0x10000000, 0x38000000, 4 * MEGABYTES, True,
    ),
}  # fmt: skip
"""By level: a board whose processor runs it.  A Cortex-M3 runs code for Armv6-M."""


def missing_tools() -> list[str]:
    """Programs that are not installed."""
    return [name for name in TOOLS if shutil.which(name) is None]


def program(
    model: CompiledModel,
    level: str,
    sample: Array,
    expected: Array,
    folder: Path,
    runs: int = 1,
    *defined: str,
) -> Path:
    """A program that runs a model's bundle between guards, and compares its output; ``defined``:
    options of the compiler for ``main.c``."""
    board, path = BOARDS[level], folder / "program.elf"
    model.export_bundle(folder, name="net", target=level)
    lines = ['.section .rodata, "a"']
    for name, array in (("sample", sample), ("expected", expected)):
        (folder / f"{name}.bin").write_bytes(array.tobytes())
        lines += [".balign 64", f".globl {name}", f'{name}: .incbin "{folder / name}.bin"']
    (folder / "data.s").write_text("\n".join([*lines, ""]))
    addresses = {
        "VECTORS_AT": board.vectors_at,
        "CODE_AT": board.code_at,
        "DATA_AT": board.data_at,
        "DATA_NBYTES": board.data_nbytes,
        "STACK_NBYTES": STACK_NBYTES,
    }
    places = [f"-Wl,--defsym={name}={value}" for name, value in addresses.items()]
    sources = [
        *(HERE / f"{name}.c" for name in ("start", "guards", "main")),
        folder / "data.s",
        folder / "net.o",
    ]
    plain = ("-mthumb", "-std=c11", "-O2", "-ffreestanding", "-nostdlib", "-Wall", "-Werror")
    linking = (f"-Wl,-T{HERE / 'board.ld'}", "-Wl,--no-warn-execstack", *places)
    libraries = ("-Wl,--start-group", "-lc", "-lm", "-lgcc", "-lnosys", "-Wl,--end-group")
    ours = (f"-DRUNS={runs}", f"-DBOARD_HAS_PMSAV8={board.has_pmsav8:d}", *defined)
    options = (*board.options, *plain, *ours, f"-I{folder}", *linking)
    run_tool(COMPILER, *options, *sources, *libraries, "-o", path)
    return path


def run_tool(*command: str | Path) -> str:
    """The output of a program.  Raises ``AssertionError`` with all that it said if it fails."""
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command[0]}: {done.stderr}{done.stdout}"
    return done.stdout


def emulated(path: Path, level: str, *more: str) -> subprocess.CompletedProcess[str]:
    """The run of a program on the board of a level."""
    board = ("-M", BOARDS[level].machine, "-nographic", "-monitor", "none", "-serial", "none")
    semihosting = ("-semihosting-config", "enable=on,target=native")
    return subprocess.run(
        [EMULATOR, *board, *semihosting, *more, "-kernel", str(path)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LONGEST_SECONDS,
        check=False,
    )


def executed(path: Path, level: str) -> int:
    """Instructions that a program executes.  Raises ``AssertionError`` if it fails."""
    done = emulated(path, level, "-plugin", str(counter()), "-d", "plugin")
    actual = EXECUTED.search(done.stderr + done.stdout)
    assert done.returncode == 0 and actual is not None, done.stdout + done.stderr
    return int(actual[1])

"""Saved networks as programs of processors that this machine emulates, and their instructions.

::

    python -m tools.integer_hashes write FOLDER mnist ppocr_cls
    python -m tools.other_processors FOLDER [--places PLACE ...]

prints instructions of one inference and the hash of the outputs.  AArch64 and RISC-V run under
QEMU, whose plugin counts; WebAssembly runs in node and in wasmtime, whose fuel counts instructions.
``make cross-setup`` installs them.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from quantglow.codegen.llvm.emitted import EmittedProgram
from quantglow.export.bundle.exporter import emit
from quantglow.export.bundle.object_tables import StackUse
from quantglow.export.bundle.program_object import program_object
from quantglow.ir.graph.graph import Graph
from quantglow.runtime.saved import saving
from quantglow.support.arrays import Array
from tests.support.pinned import digest
from tools.cross_setup import PROCESSORS, counter
from tools.integer_hashes import feeds_of

HERE = Path(__file__).parent
NAME = "net"
EXECUTED = re.compile(r"executed (\d+)")
OF_FUNCTION = re.compile(r"executed (\d+) in (\S+)")
RUNS = 3
FUEL = 1 << 62
ALIGNMENT, PAGE_NBYTES = 64, 1 << 16
POINTERS_NBYTES = 1024


@dataclass(frozen=True)
class Emulated:
    """A processor that QEMU emulates: its architecture, QEMU's name of it, and its level."""

    architecture: str
    processor: str
    level: str

    @property
    def emulator(self) -> str:
        return f"qemu-{self.architecture}"

    @property
    def compiler(self) -> str:
        return f"{self.architecture}-linux-gnu-gcc"


VECTORS = "rv64,v=true,vext_spec=v1.0"
QEMU = {
    **{name: Emulated("aarch64", processor, name) for name, processor in PROCESSORS.items()},
    "rv64gc": Emulated("riscv64", "rv64", "rv64gc"),
    "rv64gcv": Emulated("riscv64", f"{VECTORS},vlen=128", "rv64gcv"),
    **{
        f"rv64gcv {vlen}": Emulated("riscv64", f"{VECTORS},vlen={vlen}", "rv64gcv")
        for vlen in (256, 1024)
    },
}
"""Places, by name."""
COMPILERS = {place.level: place.compiler for place in QEMU.values()}
ENGINES = ("node", "wasmtime")
PLACES = (*QEMU, *(f"wasm32 {engine}" for engine in ENGINES))


@dataclass(frozen=True)
class Program:
    """A linked program with a function ``net_run``.

    ``inputs``: bytes of each; ``outputs``: element type and shape of each; ``stack``: what a run
    takes at most, which the program checks.
    """

    level: str
    folder: Path
    arena_nbytes: int
    inputs: tuple[int, ...]
    outputs: tuple[tuple[np.dtype[Any], tuple[int, ...]], ...]
    stack: StackUse

    @property
    def linked(self) -> Path:
        """The file of the program."""
        return self.folder / ("net.wasm" if self.level == "wasm32" else "net")

    @property
    def output_nbytes(self) -> tuple[int, ...]:
        return tuple(kind.itemsize * prod(shape) for kind, shape in self.outputs)

    def link(self, code: bytes) -> Program:
        """The same program, once ``code`` is linked."""
        file = self.folder / "net.o"
        file.write_bytes(code)
        if self.level == "wasm32":
            exports = ("--export=net_run", "--export=__heap_base", "--no-entry")
            called("wasm-ld-19", *exports, "-o", self.linked, file)
            return self
        sizes = {
            "ARENA": str(self.arena_nbytes),
            "INPUTS": ",".join(map(str, self.inputs)),
            "OUTPUTS": ",".join(map(str, self.output_nbytes)),
            "STACK_NBYTES": str(self.stack.nbytes),
            "STACK_REGISTERS": str(self.stack.registers),
        }
        defined = [f"-D{name}={value}" for name, value in sizes.items()]
        files = (HERE / "program_main.c", file)
        called(COMPILERS[self.level], "-O1", "-static", *defined, "-o", self.linked, *files)
        return self

    def run(
        self, place: str, samples: Sequence[Sequence[Array]], runs: int = 1
    ) -> tuple[list[list[Array]], int]:
        """Outputs of each sample, run so many times, and all instructions, 0 if not counted."""
        data = b"".join(np.ascontiguousarray(x).tobytes() for row in samples for x in row)
        in_engine = place == "wasm32 wasmtime"
        runner = self._in_wasmtime if in_engine else partial(self._in_a_process, place)
        raw, count = runner(data, len(samples), runs)
        return list(self._split(raw, len(samples))), count

    def _split(self, raw: bytes, samples: int) -> Iterator[list[Array]]:
        """The outputs of each sample."""
        at = 0
        for _ in range(samples):
            row: list[Array] = []
            for nbytes, (kind, shape) in zip(self.output_nbytes, self.outputs, strict=True):
                row.append(np.frombuffer(raw[at : at + nbytes], kind).reshape(shape))
                at += nbytes
            yield row

    def _in_a_process(self, place: str, data: bytes, *numbers: int) -> tuple[bytes, int]:
        if place in QEMU:
            done = self._emulated(place, data, *numbers)
            counted = EXECUTED.search(done.stderr.decode())
            return done.stdout, int(counted[1]) if counted else 0
        facts = {"file": str(self.linked), "arena": self.arena_nbytes}
        sizes = {"inputs": self.inputs, "outputs": self.output_nbytes}
        command = ("node", HERE / "program_main.mjs", json.dumps(facts | sizes), *numbers)
        text = [str(part) for part in command]
        return subprocess.run(text, input=data, capture_output=True, check=True).stdout, 0

    def _emulated(
        self, place: str, data: bytes, *numbers: int, counting: str = ""
    ) -> subprocess.CompletedProcess[bytes]:
        """A run under QEMU; ``counting``: arguments of the plugin that counts, where it exists."""
        at, ours = QEMU[place], list[str]()
        if counter().exists():
            ours = ["-d", "plugin", "-plugin", f"{counter()}{counting}"]
        command = [at.emulator, "-cpu", at.processor, *ours, self.linked, *numbers]
        text = [str(part) for part in command]
        return subprocess.run(text, input=data, capture_output=True, check=True)

    def by_function(self, place: str, sample: Sequence[Array], runs: int) -> dict[str, int]:
        """Instructions of each function of the program in so many runs; ``place``: of ``QEMU``."""
        data = b"".join(np.ascontiguousarray(x).tobytes() for x in sample)
        done = self._emulated(place, data, 1, runs, counting=",symbols=on")
        actual = OF_FUNCTION.findall(done.stderr.decode())
        return {name: int(count) for count, name in actual}

    def _in_wasmtime(self, data: bytes, samples: int, runs: int) -> tuple[bytes, int]:
        import wasmtime

        config = wasmtime.Config()
        config.consume_fuel = True
        store = wasmtime.Store(wasmtime.Engine(config))
        store.set_fuel(FUEL)
        module = wasmtime.Module.from_file(store.engine, str(self.linked))
        exports = wasmtime.Instance(store, module, []).exports(store)
        memory, end, places = exports["memory"], exports["__heap_base"].value(store), []
        for nbytes in (self.arena_nbytes, *self.inputs, *self.output_nbytes, POINTERS_NBYTES):
            places.append(-(-end // ALIGNMENT) * ALIGNMENT)
            end = places[-1] + nbytes
        memory.grow(store, -(-end // PAGE_NBYTES))
        arena, *buffers, pointers = places
        memory.write(store, np.array(buffers, "<u4").tobytes(), pointers)
        count, at, raw = len(self.inputs), 0, b""
        for _ in range(samples):
            for nbytes, address in zip(self.inputs, buffers, strict=False):
                memory.write(store, data[at : at + nbytes], address)
                at += nbytes
            for _ in range(runs):
                assert exports["net_run"](store, arena, pointers, pointers + 4 * count) == 0
            for nbytes, address in zip(self.output_nbytes, buffers[count:], strict=True):
                raw += bytes(memory.read(store, address, address + nbytes))
        return raw, FUEL - store.get_fuel()


def program_of(graph: Graph, level: str, folder: Path) -> Program:
    """The program of a network."""
    return linked(emit(graph, level), folder)


def linked(program: EmittedProgram, folder: Path) -> Program:
    """The program that ``program`` becomes in a file."""
    object_file = program_object(NAME, program)
    inputs = tuple(int(view.type.nbytes) for _, view in program.inputs)
    outputs = tuple((view.type.dtype.numpy, view.type.fixed_shape) for _, view in program.outputs)
    level = program.target.name
    unlinked = Program(level, folder, object_file.arena_nbytes, inputs, outputs, object_file.stack)
    return unlinked.link(object_file.code)


def called(*command: str | Path) -> None:
    """Run a command.  Raises ``CalledProcessError``."""
    subprocess.run([str(part) for part in command], check=True, capture_output=True)


def level_of(place: str) -> str:
    """The level of a place."""
    return QEMU[place].level if place in QEMU else "wasm32"


def is_installed(place: str) -> bool:
    """Whether programs can be linked and run there."""
    if place in QEMU:
        return all(map(shutil.which, (QEMU[place].emulator, QEMU[place].compiler)))
    engine = shutil.which("node") if place == "wasm32 node" else find_spec("wasmtime")
    return bool(shutil.which("wasm-ld-19") and engine)


def show(path: Path, place: str) -> None:
    """Print instructions and the hash of a network."""
    graph, feeds = saving.load(path).graph, feeds_of(path.parent, path.stem)
    with tempfile.TemporaryDirectory() as folder:
        program = program_of(graph, level_of(place), Path(folder))
        samples = [[feed[x.name] for x in graph.inputs] for feed in feeds]
        outputs, once = program.run(place, samples)
        _, often = program.run(place, samples, runs=RUNS)
    instructions = (often - once) / (RUNS - 1) / len(samples)
    print(f"{path.stem:14} {place:16} {instructions:14,.0f} {digest(outputs)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.other_processors")
    parser.add_argument("folder", type=Path, help="of `python -m tools.integer_hashes write`")
    parser.add_argument("--places", nargs="*", choices=PLACES, default=list(PLACES))
    options = parser.parse_args()
    for path in sorted(options.folder.glob("*.qgm")):
        for place in options.places:
            show(path, place)


if __name__ == "__main__":
    main()

"""Hashes of all kernels and tables of calls, to prove that code generation has not changed.

::

    python -m tools.prepared_graphs FOLDER
    python -m tools.kernel_hashes FOLDER --write before.json --texts before
    python -m tools.kernel_hashes FOLDER --compare before.json --texts before --dump changed

Each ``.qgm`` file in the folder is compiled for every level and number of threads, up to the texts
of kernels: LLVM is not asked, so levels need not run here.  The graphs come out of files, so what
import and quantization do has no part in it.  Names in the texts do not count (``llvm_text``).
Entries are named ``GRAPH LEVEL THREADS``; ``runtime LEVEL`` is the run-time system.

``--texts``: the folder of the kernels' texts, one file for each; ``--write`` fills it.
``--dump``: writes the texts that differ, as ``NAME.before.ll`` and ``NAME.after.ll``.

A table of calls is, for each call in order: its kernel, items, chunks, and where its pointers lead:
an offset in the arena, an input or output, or the content of a constant.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from quantglow.codegen.llvm.emission import kernel_calls
from quantglow.codegen.llvm.isa.target import Target
from quantglow.codegen.llvm.kernel import KernelCall
from quantglow.codegen.llvm.targets import LEVELS, level_target, resolve
from quantglow.ir.graph.graph import Graph
from quantglow.ir.program.program import BufferKind, View
from quantglow.memory.planner import MemoryPlan
from quantglow.memory.plans import PlannedProgram
from quantglow.runtime.native.executable import crew_for, split_chunks
from quantglow.runtime.native.table_runner import run_time_texts
from quantglow.runtime.programs.build import ProgramBackend
from quantglow.runtime.saved import saving
from quantglow.support.arrays import Array
from tools.comparison import Record, add_arguments, finish
from tools.llvm_text import digest, normal_text

NATIVE = "native"
"""This processor, whose core and features beyond its level decide, too."""


class Texts:
    """Normal texts of kernels by their hashes; kept in ``folder`` where there is one."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.known: dict[str, str] = {}
        self.hashes: dict[str, str] = {}

    def add(self, text: str) -> str:
        """The hash of an IR text."""
        if text not in self.hashes:
            normal = normal_text(text)
            self.hashes[text] = digest(normal)
            self.known[self.hashes[text]] = normal
        return self.hashes[text]

    def write(self) -> None:
        """Write what the folder has not."""
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            for name, text in self.known.items():
                path = self.folder / f"{name}.ll"
                if not path.exists():
                    path.write_text(text)

    def get(self, name: str) -> str:
        """A text, from the folder if it is none of today's; empty where it is nowhere."""
        path = None if self.folder is None else self.folder / f"{name}.ll"
        if name in self.known or path is None or not path.exists():
            return self.known.get(name, "")
        return path.read_text()


def target_of(level: str) -> Target:
    """A level, or this processor."""
    return resolve(NATIVE) if level == NATIVE else level_target(level)


def program_entry(
    planned: PlannedProgram, pieces: int, target: Target, threads: int, texts: Texts
) -> dict[str, Any]:
    """The hashes of a program."""
    program, plan = planned.program, planned.plan
    rows, listed, work = [], [], 0.0
    for step, call in kernel_calls(program, target):
        text, pointers = texts.add(call.ir), pointers_of(call, plan)
        chunks = split_chunks(np.array([call.items]), np.array([call.work]), threads)
        shared = [call.items, int(chunks[0])]
        name = call.label or type(step).__name__
        listed.append(f"{text} {name} {digest(repr((text, pointers, shared)))}")
        rows.append((text, pointers))
        work += call.work
    hashes = sorted(text for text, _ in rows)
    whole = (listed_rows(listed), pieces, crew_for(work, threads), plan.peak_nbytes)
    return {
        "kernels": len(set(hashes)),
        "texts": digest("\n".join(hashes)),
        "table": digest(repr(whole)),
        "calls": listed,
    }


def listed_rows(calls: list[str]) -> list[str]:
    """The hashes of the table's rows."""
    return [call.rpartition(" ")[2] for call in calls]


def pointers_of(call: KernelCall, plan: MemoryPlan) -> list[object]:
    """Targets of the pointers of a call."""
    return [place(pointer, plan) for pointer in call.pointers] + [call.checked]


def place(pointer: View | Array, plan: MemoryPlan) -> object:
    """Target of a pointer, without addresses."""
    if not isinstance(pointer, View):
        return digest(pointer.tobytes()), pointer.nbytes
    buffer, kind = pointer.buffer, str(pointer.buffer.kind)
    if buffer.kind is BufferKind.TEMP:
        return kind, plan.offsets[buffer] + pointer.offset_bytes
    if buffer.value is not None:
        return kind, digest(buffer.value.tobytes()), pointer.offset_bytes
    return kind, buffer.name, pointer.offset_bytes


def graph_entries(
    name: str, graph: Graph, levels: list[str], threads: list[int], texts: Texts
) -> Iterator[tuple[str, Any]]:
    """The entries of a graph."""
    for level in levels:
        target = target_of(level)
        for number in threads:
            planned, pieces = ProgramBackend(target).planned(graph, number)
            entry = program_entry(planned, pieces, target, number, texts)
            yield f"{name} {level} {number}", entry


def runtime_entry(level: str, texts: Texts) -> list[str]:
    """The hashes of the run-time system of a level."""
    return [texts.add(text) for text in run_time_texts(target_of(level)).values()]


def explain(texts: Texts, dump: Path | None, name: str, before: Any, after: Any) -> str:
    """Differences of an entry; writes the texts."""
    if isinstance(after, list):
        pairs = list(zip_longest(before, after, fillvalue=""))
        dump_texts(texts, dump, name, pairs)
        return f"{name}: the run-time system differs"
    old, new = ([call.split(" ")[0] for call in entry["calls"]] for entry in (before, after))
    gone, come = Counter(old) - Counter(new), Counter(new) - Counter(old)
    actual = [f"{len(gone)} of {before['kernels']} kernels differ"] if gone or come else []
    if before["table"] != after["table"]:
        actual.append("the table of calls differs")
    if len(old) != len(new):
        actual.append(f"{len(old)} calls before, {len(new)} now")
    lines = []
    if len(old) == len(new):
        changed = dict.fromkeys(
            (a, b) for a, b in zip(before["calls"], after["calls"], strict=True) if a != b
        )
        lines = [f"    {a} -> {b}" for a, b in list(changed)[:8]]
        dump_texts(texts, dump, name, [(a.split()[0], b.split()[0]) for a, b in changed])
    return "\n".join([f"{name}: {', '.join(actual) or 'labels only'}", *lines])


def dump_texts(texts: Texts, dump: Path | None, name: str, pairs: list[tuple[str, str]]) -> None:
    """Write the texts of kernels before and after."""
    if dump is None:
        return
    dump.mkdir(parents=True, exist_ok=True)
    for a, b in pairs:
        if a != b:
            start = f"{name.replace(' ', '-')}-{a}"
            (dump / f"{start}.before.ll").write_text(texts.get(a))
            (dump / f"{start}.after.ll").write_text(texts.get(b))


def graphs_in(folder: Path, networks: list[str] | None) -> Mapping[str, Path]:
    """The files of a folder, by network and precision; ``networks`` are beginnings of names."""
    files = {path.stem: path for path in sorted(folder.glob("*.qgm"))}
    chosen = tuple(networks or [""])
    return {name: path for name, path in files.items() if name.startswith(chosen)}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.kernel_hashes")
    parser.add_argument("folder", type=Path, help="of .qgm files")
    parser.add_argument("--networks", nargs="*", metavar="NAME", help="beginnings of file names")
    parser.add_argument("--levels", nargs="*", default=[*LEVELS, NATIVE], metavar="LEVEL")
    parser.add_argument("--threads", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--texts", type=Path, metavar="FOLDER")
    parser.add_argument("--dump", type=Path, metavar="FOLDER")
    add_arguments(parser)
    options = parser.parse_args()
    texts, record = Texts(options.texts), Record()
    for level in options.levels:
        record[f"runtime {level}"] = runtime_entry(level, texts)
    for name, path in graphs_in(options.folder, options.networks).items():
        graph = saving.load(path).graph
        for key, entry in graph_entries(name, graph, options.levels, options.threads, texts):
            record[key] = entry
            print(f"{key}: {entry['kernels']} kernels {entry['texts']}, table {entry['table']}")
    if options.write:
        texts.write()
    finish(options, record, partial(explain, texts, options.dump))


if __name__ == "__main__":
    main()

"""Each processor is known in one place, and each instruction set keeps the interface's promises."""

from __future__ import annotations

import ast
import ctypes
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given

from quantglow.codegen.llvm import targets
from quantglow.codegen.llvm.builder import Builder
from quantglow.codegen.llvm.isa.target import Host, Target
from quantglow.codegen.llvm.kernels import emit
from quantglow.codegen.llvm.targets import LEVELS, level_target, resolve, runs_here
from quantglow.codegen.llvm.values import FLOAT, I32, vector
from quantglow.ir.graph.graph import Graph
from quantglow.ir.program.program import Compute
from quantglow.runtime.jit.library import addresses
from quantglow.support.arrays import Array
from tests.generators.quantized_graphs.graphs import mixed_graphs
from tests.matrix.harness import planned
from tests.matrix.plain_ir.translation import FAMILIES, plain
from tests.support.effort import moderate

PACKAGE = Path(__file__).resolve().parents[3] / "quantglow"
LLVM = PACKAGE / "codegen" / "llvm"
LOADING = [PACKAGE / "runtime" / "jit", PACKAGE / "runtime" / "native"]
FILES = sorted(path for folder in [LLVM, *LOADING] for path in folder.rglob("*.py"))
REGISTRY = "targets.py"
PROCESSORS = re.compile(r"llvm\.(x86|aarch64|arm|riscv|wasm)\b|vpdp|pmadd|vrangeps|asm sideeffect")
NAMES = re.compile(
    r"x86|\bavx|vnni|\bamx|\bsse\d?\b|\b[xyz]mm\d*\b|\b(neon|aarch64|cortex|riscv|i8mm|wasm)|futex|\bsyscall"
    rf"|{PROCESSORS.pattern}",
    re.IGNORECASE,
)
"""Processors, their instructions and registers, and system calls by number."""
WIDTHS = {"vector_nbytes", "f32_lanes", "group_nbytes", "slack_nbytes"}
MENTIONS = re.compile(f"{NAMES.pattern}|{'|'.join(sorted(WIDTHS))}", re.IGNORECASE)
"""In a file's text, where only docstrings and comments may have them."""
ASSEMBLY = re.compile(r"\basm (sideeffect |\{effect\})?\"")
HERE = tuple(name for name in LEVELS if runs_here(name))
TRANSLATED = tuple(level.name for family in FAMILIES.values() for level in family.levels)


def place(path: Path) -> str:
    return path.relative_to(LLVM if path.is_relative_to(LLVM) else PACKAGE).as_posix()


def imported(path: Path) -> Iterator[str]:
    """Modules of ``codegen/llvm`` that a file imports, as paths from it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                if name.startswith("quantglow.codegen.llvm."):
                    yield name.removeprefix("quantglow.codegen.llvm.").replace(".", "/")


SPELLED_OUT = {
    PACKAGE / "cli" / "main.py",
    PACKAGE / "cli" / "bundle.py",
    PACKAGE / "export" / "bundle" / "linking.py",
    PACKAGE / "export" / "bundle" / "object_tables.py",
    PACKAGE / "export" / "bundle" / "writer.py",
}
"""The command line, readers of object formats, names of linkers, and the writers of modules."""


def elsewhere() -> list[Path]:
    """All files that know no processor."""
    known = {LLVM / REGISTRY, *(LLVM / "isa").rglob("*.py"), *SPELLED_OUT}
    return sorted(set(PACKAGE.rglob("*.py")) - known)


def words(tree: ast.AST) -> Iterator[str]:
    """Names and texts of a file, without docstrings and comments."""
    described = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) not in described:
                yield node.value
        elif isinstance(node, ast.alias):
            yield f"{node.name} {node.asname}"
        else:
            named = (getattr(node, key, None) for key in ("id", "attr", "arg", "name", "module"))
            yield from (word for word in named if isinstance(word, str))


def guesses(tree: ast.AST) -> list[int]:
    """Lines that compare the width of vectors with a number."""
    lines = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = (node.left, *node.comparators)
            widths = {side.attr for side in sides if isinstance(side, ast.Attribute)} & WIDTHS
            if widths and any(isinstance(side, ast.Constant) for side in sides):
                lines.append(node.lineno)
    return lines


def test_only_instruction_sets_name_processors_and_their_widths() -> None:
    naming, guessing = {}, {}
    for path in elsewhere():
        if not MENTIONS.search(text := path.read_text()):
            continue
        tree = ast.parse(text)
        if named := [word for word in words(tree) if NAMES.search(word)]:
            naming[path] = named
        if lines := guesses(tree):
            guessing[path] = lines
    assert (naming, guessing) == ({}, {})


def test_assembly_is_left_to_instruction_sets() -> None:
    """An empty one that hides the origin of a value is allowed, because every processor
    takes it.
    """
    others = [path for path in FILES if not place(path).startswith("isa/")]
    counts = {place(path): len(ASSEMBLY.findall(path.read_text())) for path in others}
    assert {name: count for name, count in counts.items() if count} == {"builder.py": 1}


@pytest.mark.parametrize("path", FILES, ids=place)
def test_only_the_registry_imports_an_instruction_set(path: Path) -> None:
    sets_of = re.compile("isa/(x86|aarch64|riscv|wasm|cortex_m|portable)")
    ours = sets_of.match(place(path))
    sets = {name for name in imported(path) if sets_of.match(name)}
    assert place(path) == REGISTRY or ours or not sets


@pytest.mark.parametrize("path", sorted((LLVM / "isa").rglob("*.py")), ids=place)
def test_instruction_sets_know_nothing_of_kernels_and_loading(path: Path) -> None:
    assert not [
        name for name in imported(path) if not name.startswith(("isa/", "builder", "values"))
    ]


@moderate
@given(mixed_graphs())
def test_portable_code_uses_no_intrinsic_of_a_processor(graph: Graph) -> None:
    program, _ = planned(graph, unsigned=False)
    steps = [step for step in program.instructions if isinstance(step, Compute)]
    texts = [emit(step, level_target("portable")).ir for step in steps]
    assert not [text for text in texts if PROCESSORS.search(text)]


@pytest.mark.parametrize("triple", ["loongarch64-unknown-linux-gnu", "riscv64-unknown-linux-gnu"])
def test_other_processors_run_portable_code(triple: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "host", lambda: Host(triple, "generic", "+d"))
    actual = resolve.__wrapped__("native")
    assert (actual.name, actual.triple) == ("portable", triple)


# -- the promises


def rounded(target: Target, lanes: int, values: Array) -> Array:
    """``round_to_int`` of values, ``lanes`` at a time."""
    b = Builder()
    out, x = b.kernel(2)
    with b.loop("%begin", "%end", lanes) as index:
        offset = b.mul(index, 4)
        loaded = b.load(vector(lanes, FLOAT), b.at(x, offset))
        b.store(vector(lanes, I32), target.isa.round_to_int(b, lanes, loaded), b.at(out, offset))
    array = np.zeros(values.size, np.int32)
    pointers = np.array([array.ctypes.data, values.ctypes.data], np.uint64)
    (address,) = addresses(target, [b.finish()])
    entry = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(address)
    entry(pointers.ctypes.data, 0, values.size)
    return array


def vector_sizes(level: str) -> list[int]:
    most = level_target(level).f32_lanes
    return [lanes for lanes in (1, 4, 8, 16) if lanes <= most]


def runnable(level: str) -> Target:
    """A level of this machine, or the meaning of another processor's instructions."""
    return resolve(level) if runs_here(level) else plain(level)


SIZES = [
    (level, lanes) for level in dict.fromkeys((*HERE, *TRANSLATED)) for lanes in vector_sizes(level)
]


@pytest.mark.parametrize(("level", "lanes"), SIZES)
def test_halves_are_rounded_to_even(level: str, lanes: int) -> None:
    rng = np.random.default_rng(0)
    halves = np.arange(-64, 64, dtype=np.float32) / 2
    large = rng.uniform(-(2.0**31), 2.0**31 - 128, 512)
    values = np.concatenate([halves, np.nextafter(halves, np.float32(9)), large], dtype=np.float32)
    actual = rounded(runnable(level), lanes, values)
    np.testing.assert_array_equal(actual, np.rint(values.astype(np.float64)).astype(np.int32))


@pytest.mark.parametrize(("level", "lanes"), SIZES)
def test_numbers_that_int32_does_not_hold_keep_the_promise(level: str, lanes: int) -> None:
    below = np.array([-(2.0**31), -3e9, -np.inf, np.nan] * 4, np.float32)
    above = np.array([2.0**31, 3e9, 1e38, np.inf] * 4, np.float32)
    least = np.iinfo(np.int32).min
    assert (rounded(runnable(level), lanes, below) == least).all()
    actual = rounded(runnable(level), lanes, above)
    assert ((actual == least) | (actual >= 2**30)).all()

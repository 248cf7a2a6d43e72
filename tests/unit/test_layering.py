"""Imports go downhill only; each foreign library has one door."""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2] / "quantglow"
LAYERS = (
    ("version",),
    ("alive", "concise", "errors", "timeline", "lazy"),
    ("processes",),
    ("symbolic",),
    ("types", "debug", "arguments", "files"),
    ("pages", "extras", "foreign_types"),
    ("options", "steps", "fourier", "pass_manager", "webpage", "clusters"),
    ("graph",),
    ("ops",),
    ("interpreter",),
    ("passes", "frontend"),
    ("data",),
    ("profiling",),
    ("converters",),
    ("quantization",),
    ("lowering",),
    ("instr",),
    ("memory",),
    ("backends",),
    ("bundle",),
    ("runtime",),
    ("report",),
    ("tuning",),
    ("driver",),
    ("cli", "backend", "torch_backend"),
    ("__main__",),
)
"""Lowest first.  A room may import itself and the layers below its own."""

DOORS = {
    "onnx": ("frontend", "backend.py", "converters/tflite"),
    "google": ("frontend",),
    "llvmlite": ("backends/llvm",),
    "onnxruntime": ("backends/onnxruntime", "report/peers/onnxruntime_"),
    "PIL": ("data/images",),
    "pyarrow": ("data/tables",),
    "pickle": (),
    "torch": ("converters/pytorch", "torch_backend.py"),
}

RANK = {room: rank for rank, rooms in enumerate(LAYERS) for room in rooms}
FILES = sorted(p for p in ROOT.rglob("*.py") if p != ROOT / "__init__.py")


@cache
def imports(path: Path) -> tuple[str, ...]:
    """Dotted names that a file imports anywhere in it."""
    return tuple(found_imports(path))


def found_imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative import"
            for alias in node.names:
                yield f"{node.module}.{alias.name}"


def room(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_downhill(path: Path) -> None:
    own = room(path)
    targets = {name.split(".")[1] for name in imports(path) if name.startswith("quantglow.")}
    uphill = {t for t in targets - {own} if RANK[t] >= RANK[own]}
    assert not uphill


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_attribute_is_computed_under_a_lock(path: Path) -> None:
    assert "functools.cached_property" not in set(imports(path))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_foreign_libraries_are_imported_at_their_door_only(path: Path) -> None:
    place = path.relative_to(ROOT).as_posix()
    found = {name.split(".")[0] for name in imports(path)} & DOORS.keys()
    assert all(place.startswith(DOORS[name]) for name in found)


@pytest.mark.parametrize("path", sorted((ROOT / "backends").rglob("*.py")), ids=lambda p: p.stem)
def test_backends_do_not_see_the_high_level_graph(path: Path) -> None:
    assert not {n for n in imports(path) if n.startswith("quantglow.graph.graph")}


def test_every_room_has_a_layer() -> None:
    assert {room(path) for path in FILES} == RANK.keys()


def modules_in(room: str) -> dict[str, Path]:
    """Dotted name of each module of a room -> its file."""
    paths = [path for path in FILES if path.relative_to(ROOT).parts[0] == room]
    names = (".".join(("quantglow", *p.relative_to(ROOT).with_suffix("").parts)) for p in paths)
    return {name.removesuffix(".__init__"): path for name, path in zip(names, paths, strict=True)}


def folder_of(name: str) -> str:
    """The folder of a module of a room; a module beside the folders is one by itself."""
    return ".".join(name.split(".")[:3])


def place_of(name: str) -> str:
    """The folder of a module of a room; the modules beside the folders are one place."""
    is_folder = (ROOT.parent / name.replace(".", "/")).is_dir()
    return folder_of(name if is_folder else name.rpartition(".")[0])


@pytest.mark.parametrize(
    ("room", "part_of"),
    [
        ("quantization", str),
        ("quantization", folder_of),
        ("frontend", folder_of),
        ("report", place_of),
        ("processes", str),
    ],
    ids=lambda case: case if isinstance(case, str) else case.__name__,
)
def test_a_room_has_no_circle(room: str, part_of: Callable[[str], str]) -> None:
    modules = modules_in(room)
    edges: dict[str, set[str]] = {}
    for name, path in modules.items():
        targets = {t if t in modules else t.rpartition(".")[0] for t in imports(path)}
        found = {part_of(target) for target in targets & modules.keys()}
        edges.setdefault(part_of(name), set()).update(found - {part_of(name)})
    order = list(graphlib.TopologicalSorter(edges).static_order())  # raises CycleError
    assert edges.keys() <= set(order)

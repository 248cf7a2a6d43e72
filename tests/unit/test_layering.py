"""Imports go downhill only, in every folder; each foreign library has its doors."""

from __future__ import annotations

import ast
import graphlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2] / "quantglow"
ROOMS = (
    "version",
    "support",
    "steps",
    "ir",
    "interpreter",
    "transforms",
    "memory",
    "codegen",
    "profiling",
    "importer",
    "quantization",
    "export",
    "ort",
    "runtime",
    "tuning",
    "evaluation",
    "report",
    "api",
    "data",
    "backend",
    "torch_backend",
    "ep",
    "cli",
    "__main__",
)
"""Folders and files of the package, the lowest first: each may import those before it."""

DOORS = {
    "onnx": ("importer/onnx", "importer/tflite", "export/onnx", "ort", "backend.py", "ep"),
    "google": ("importer/onnx", "export/onnx", "ort"),
    "llvmlite": ("codegen/llvm", "runtime/jit"),
    "onnxruntime": ("ort", "evaluation/baselines"),
    "PIL": ("profiling/samples",),
    "pyarrow": ("profiling/samples",),
    "pickle": (),
    "torch": ("importer/torch", "torch_backend.py"),
}
"""Rooms and files that may import each foreign library."""

FIGURES_APART = {
    "evaluation": ("html", "rich", "quantglow.report"),
    "report": (
        "quantglow.codegen",
        "quantglow.interpreter",
        "quantglow.memory",
        "quantglow.ort",
        "quantglow.profiling.profile",
        "quantglow.profiling.recording",
        "quantglow.profiling.samples",
        "quantglow.runtime",
        "quantglow.transforms",
    ),
}
"""Measuring is apart from showing: modules and functions that neither room may import."""

RANKS = {room: rank for rank, room in enumerate(ROOMS)}
FILES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")
FOLDERS = sorted({path.parent for path in FILES})


def module_name(path: Path) -> str:
    """The dotted name of a file or a folder of the package."""
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


MODULES = {module_name(path): path for path in FILES}


@cache
def imports(path: Path) -> tuple[str, ...]:
    """Dotted names that a file imports anywhere in it, but for type checkers only."""
    return tuple(imported_names(ast.parse(path.read_text(encoding="utf-8")), path))


def imported_names(tree: ast.AST, path: Path) -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        yield from imported_names(node, path)


@cache
def imported_modules(path: Path) -> frozenset[str]:
    """Modules of the package that a file imports."""
    names = [name for name in imports(path) if name.startswith("quantglow.")]
    return frozenset(name if name in MODULES else name.rpartition(".")[0] for name in names)


def room(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def part_of(folder: Path, path: Path) -> str:
    """The file or folder in ``folder`` that a path leads to."""
    return path.relative_to(folder).parts[0]


def targets_above(path: Path) -> set[str]:
    """Rooms that a file imports and that stand beside or above its own."""
    targets = {name.split(".")[1] for name in imports(path) if name.startswith("quantglow.")}
    return {t for t in targets - {room(path)} if RANKS[t] >= RANKS[room(path)]}


def test_imports_go_downhill() -> None:
    assert {path: above for path in FILES if (above := targets_above(path))} == {}


def test_every_room_has_a_rank() -> None:
    assert {room(path) for path in FILES} == RANKS.keys()


def test_the_readme_lists_the_rooms_in_their_order() -> None:
    cells = re.findall(r"^\| `(.+?)` \|", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE)
    rooms = [cell.removesuffix("/").removesuffix(".py") for cell in cells if cell != "py.typed"]
    assert rooms == [*reversed(ROOMS)]


def test_no_circle_of_files() -> None:
    edges = {name: imported_modules(path) & MODULES.keys() for name, path in MODULES.items()}
    order = list(graphlib.TopologicalSorter(edges).static_order())  # raises CycleError
    assert set(order) == MODULES.keys()


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_circle_in_a_folder(folder: Path) -> None:
    edges: dict[str, set[str]] = {}
    for path in FILES:
        if path.is_relative_to(folder) and path != folder / "__init__.py":
            targets = [MODULES[name] for name in imported_modules(path) & MODULES.keys()]
            inside = {part_of(folder, t) for t in targets if t.is_relative_to(folder)}
            part = part_of(folder, path)
            edges.setdefault(part, set()).update(inside - {part, "__init__.py"})
    order = list(graphlib.TopologicalSorter(edges).static_order())  # raises CycleError
    assert set(order) >= edges.keys()


def test_no_attribute_is_computed_under_a_lock() -> None:
    assert [path for path in FILES if "functools.cached_property" in imports(path)] == []


def foreign_imports(path: Path) -> set[str]:
    """Foreign libraries that a file imports and is no door of."""
    place = path.relative_to(ROOT).as_posix()
    libraries = {name.split(".")[0] for name in imports(path)} & DOORS.keys()
    return {name for name in libraries if not place.startswith(DOORS[name])}


def test_foreign_libraries_are_imported_at_their_doors_only() -> None:
    assert {path: foreign for path in FILES if (foreign := foreign_imports(path))} == {}


@pytest.mark.parametrize("place", FIGURES_APART)
def test_measuring_is_apart_from_showing(place: str) -> None:
    names = {name for path in (ROOT / place).rglob("*.py") for name in imports(path)}
    barred = FIGURES_APART[place]
    assert {n for n in names if any(f"{n}.".startswith(f"{b}.") for b in barred)} == set()


def test_code_generators_do_not_see_the_high_level_graph() -> None:
    seeing = [
        path
        for path in sorted((ROOT / "codegen").rglob("*.py"))
        if any(name.startswith("quantglow.ir.graph.graph") for name in imports(path))
    ]
    assert seeing == []

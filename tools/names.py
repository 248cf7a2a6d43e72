"""Names that say too little: ``python -m tools prose`` lists them beside the sentences.

Refused are the ``VAGUE`` words as names of variables, parameters, attributes and functions, a class
name that two files of the package define, and British spellings.  Texts in quotes are left alone,
but names in them are the user's: keys of files, public names.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

CODE = ("benchmarks", "quantglow", "tests", "tools")
"""Folders whose names are held to the rules."""

VAGUE = frozenset({"found", "made", "own", "given", "wanted", "taken", "seen", "rest"})
"""Participles that name no value: ``found = ...`` may be a graph, a plan or a list of errors."""

BRITISH = re.compile(
    r"(?:centre|centring|colour|grey|labell|licence|modell|neighbour|behaviour|"
    r"(?:canonical|equal|general|initial|normal|optim|quant|recogn|serial|special|vector)is)"
)

EXCEPTIONS = {
    "seen": "a key of reports, which are read by programs of users",
    "centres": "the public name of a figure of histograms",
    "specialisation": "public: compiled.specialisations and warm_up(specialised=True)",
    "specialisations": "public, as above",
    "specialised": "public, as above",
    "recognise": "passes that `quantglow opt` and saved logs call recognise-...",
    "quantise": "a name that does not exist, for the hint at the nearest one",
}
"""Name, or first word of one -> why it stays."""

SHARED_CLASSES = {"ElementType", "Rescale", "Resize", "Sigmoid", "Softmax", "TopK"}
"""Steps of ``quantglow.steps``, which have the names of the operators that they become."""


@cache
def parse(path: Path) -> ast.Module:
    """The syntax tree of a Python file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def refused_names(path: Path) -> Iterator[tuple[int, str]]:
    """Line and name of each identifier of a file that breaks a rule."""
    for line, name in identifiers(parse(path)):
        plain = name.strip("_").lower()
        if name in VAGUE - EXCEPTIONS.keys():
            yield line, f"{name}: say what the value is"
        elif BRITISH.search(plain) and plain.split("_")[0] not in EXCEPTIONS:
            yield line, f"{name}: spell it as in American English"


def identifiers(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and name of everything that a file names."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                if not name.startswith("test_"):
                    yield node.lineno, name
            case ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.arg(arg=name):
                yield node.lineno, name
            case ast.alias(asname=str(name)):
                yield node.lineno, name


def shared_class_names(files: Sequence[Path]) -> Iterator[tuple[Path, int, str]]:
    """File, line and name of each class that another file defines, too."""
    places = defaultdict[str, list[tuple[Path, int]]](list)
    for path in files:
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.ClassDef) and node.name not in SHARED_CLASSES:
                places[node.name].append((path, node.lineno))
    for name, defined in places.items():
        if len({path for path, _ in defined}) > 1:
            for path, line in defined:
                yield path, line, f"class {name}: another file has a class of this name"

"""The files of a bundle."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from quantglow.backends.llvm.aot.program_object import ProgramObject
from quantglow.backends.llvm.aot.weights import Placement
from quantglow.bundle import cmake, example
from quantglow.bundle.code import Code
from quantglow.bundle.contents import Contents, Model
from quantglow.bundle.earlier import is_edited, left_over, signed
from quantglow.bundle.header import header
from quantglow.bundle.limits import Limits
from quantglow.bundle.manifest import manifest
from quantglow.bundle.pool import pool_files
from quantglow.bundle.shared import Library, shared_library
from quantglow.bundle.tensors import inputs_of, outputs_of
from quantglow.bundle.wasm import es_module, wasm_module
from quantglow.bundle.weights_file import c_weights
from quantglow.errors import FileFormatError, OptionError
from quantglow.files import cause, writing

FIXED_NAMES = {
    "main.c": (example.EXAMPLE_FIRST_LINE, "/* {} */"),
    "CMakeLists.txt": (cmake.CMAKE_FIRST_LINE, "# {}"),
}
"""Files whose names do not begin with that of the bundle -> how quantglow begins them, and how
comments of their language look."""


def write_bundle(
    folder: str | os.PathLike[str],
    model: Model,
    code: Code,
    placement: Placement,
    library: Library,
    limits: Limits,
    has_pool: bool = False,
) -> None:
    """Write ``NAME.o``, ``NAME.h``, ``NAME.json``, an example and, by options, the weights and
    ``libNAME.so``, or ``NAME.wasm`` with ``NAME.mjs``, and a thread pool.

    Nothing is written unless all was compiled.  Raises ``OptionError``, ``BackendError`` and
    ``FileFormatError``.
    """
    bundle = replace(contents_of(model, code, placement), has_pool=has_pool)
    limits.check(bundle)
    files = bundle_files(bundle, library)
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileFormatError(
            f"cannot make the folder {os.fspath(folder)!r}: {cause(error)}. "
            "Remedy: name a folder where you may write."
        ) from error
    old = list(left_over(folder, model.name, files))
    with ExitStack() as stack:  # all are written before the first one takes its name
        for file, data in files.items():
            stack.enter_context(writing(path / file)).write_bytes(data)
    for left in old:
        left.unlink(missing_ok=True)


def check_files(folder: str | os.PathLike[str]) -> None:
    """Raise ``OptionError`` for a folder with a ``main.c`` or ``CMakeLists.txt`` that the user
    wrote or edited."""
    for file, (first_line, comment) in FIXED_NAMES.items():
        path = Path(folder) / file
        if not os.path.exists(path):
            continue
        if not is_generated(path, first_line):
            what = "quantglow did not write it"
        elif is_edited(path, comment):
            what = "it was edited, or an older version of quantglow wrote it"
        else:
            continue
        raise OptionError(
            f"{os.fspath(path)!r} would be overwritten, and {what}. "
            "Remedy: name another folder, such as a new one beside it, or move the file away."
        )


def is_generated(path: Path, first_line: str) -> bool:
    """Whether a file begins with a line that quantglow writes for a bundle of any name."""
    before, after = first_line.split("{}")
    if not os.path.isfile(path):  # a folder, or a pipe, which may never end
        return False
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            line = file.readline().rstrip("\n")
    except OSError:
        return False
    return line.startswith(before) and line.endswith(after)


def contents_of(model: Model, code: Code, placement: Placement) -> Contents:
    """The object of a model, and what there is to know of it.  Raises ``BackendError``."""
    name, base = model.name, code.base
    made = code.made(model, placement)
    return Contents(model, base.target, made, inputs_of(name, base), outputs_of(name, base))


def bundle_files(bundle: Contents, library: Library) -> dict[str, bytes]:
    """The contents of each file."""
    name, made = bundle.name, bundle.made
    texts = {
        f"{name}.h": header(bundle),
        "main.c": example.example(bundle),
        "CMakeLists.txt": cmake.cmake_lists(bundle),
    }
    texts |= {file: signed(texts[file], comment) for file, (_, comment) in FIXED_NAMES.items()}
    if bundle.has_pool:
        texts |= pool_files(bundle)
    parts = {f"{part}.o": data for part, data in made.parts.items()}
    files = {f"{name}.o": made.code, **parts, **weights_files(name, made)}
    files |= {file: text.encode() for file, text in texts.items()}
    if library is Library.SHARED:
        files |= loadable_files(bundle)
    facts = manifest(bundle, files)
    return {**files, f"{name}.json": (json.dumps(facts, indent=1) + "\n").encode()}


def loadable_files(bundle: Contents) -> dict[str, bytes]:
    """The files for loaders.  Raises ``BackendError``."""
    name, made = bundle.name, bundle.made
    if bundle.target.is_module:
        return {f"{name}.wasm": wasm_module(bundle), f"{name}.mjs": es_module(bundle).encode()}
    file = f"lib{name}.so"
    return {file: shared_library([made.code, *made.parts.values()], bundle.target, file)}


def weights_files(name: str, made: ProgramObject) -> dict[str, bytes]:
    """The file of the weights, if they are not in the object."""
    match made.weights.placement:
        case Placement.OBJECT:
            return {}
        case Placement.C:
            return {f"{name}_weights.c": c_weights(name, made.weights).encode()}
        case Placement.BIN:
            return {f"{name}_weights.bin": b"".join(made.weights.pieces())}

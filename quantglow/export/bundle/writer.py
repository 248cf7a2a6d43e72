"""Writes the files of a bundle: limits, manifest, files that were there before.

A bundle that exceeds its limits of flash and RAM is refused with its figures.  The manifest says as
JSON what the bundle was made of and what it needs.  For WebAssembly the files include a module of
the model, and the ES module that loads it in Node and in browsers.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from quantglow.export.bundle.border import Bundle
from quantglow.export.bundle.c_files import (
    CMAKE_FIRST_LINE,
    EXAMPLE_FIRST_LINE,
    c_weights,
    cmake_lists,
    example,
    pool_files,
)
from quantglow.export.bundle.constants import Placement
from quantglow.export.bundle.contents import (
    BundleCode,
    BundledModel,
    Contents,
    input_tensors,
    output_tensors,
)
from quantglow.export.bundle.header import RESULTS, header
from quantglow.export.bundle.linking import Library, link, link_shared, programs
from quantglow.export.bundle.program_object import ProgramObject
from quantglow.ir.program.layout import ALIGNMENT
from quantglow.support.errors import BackendError, FileFormatError, OptionError
from quantglow.support.files import cause, writing
from quantglow.version import __version__

SIGNATURE = "SHA-256 of the lines above, by which quantglow knows that nobody edited them:"

FORMAT = 1

FIXED_NAMES = {
    "main.c": (EXAMPLE_FIRST_LINE, "/* {} */"),
    "CMakeLists.txt": (CMAKE_FIRST_LINE, "# {}"),
}
"""Files whose names do not begin with that of the bundle -> how quantglow begins them, and how
comments of their language look."""


@dataclass(frozen=True)
class BundleLimits:
    """Maximum bytes of code and weights, and of arena and stack; None: any."""

    flash_nbytes: int | None = None
    ram_nbytes: int | None = None

    def check(self, bundle: Bundle) -> None:
        """Raise ``BackendError`` for a bundle that needs more.  Its functions run one after the
        other, in one arena."""
        programs = [function.program for function in bundle.functions]
        arena = max(program.arena_nbytes for program in programs)
        stack = max(program.stack.most_nbytes for program in programs)
        if self.flash_nbytes is not None:
            flash = [function.flash for function in bundle.functions]
            code, weights = sum(f.code_nbytes for f in flash), sum(f.weights_nbytes for f in flash)
            parts = {"code": code, "weights": weights}
            _refuse("flash", parts, self.flash_nbytes, f", {flash[0].method}")
        if self.ram_nbytes is not None:
            _refuse("ram", {"arena": arena, "stack": stack}, self.ram_nbytes)


def write_bundle(
    folder: str | os.PathLike[str],
    bundle: Bundle,
    library: Library,
    limits: BundleLimits,
) -> None:
    """Write ``NAME.json``, an example and, for each function, ``NAME.o``, ``NAME.h`` and, by
    options, the weights and ``libNAME.so``, or ``NAME.wasm`` with ``NAME.mjs``, and a thread pool.

    Nothing is written unless all was compiled.  Raises ``OptionError``, ``BackendError`` and
    ``FileFormatError``.
    """
    limits.check(bundle)
    files = _bundle_files(bundle, library)
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileFormatError(
            f"cannot make the folder {os.fspath(folder)!r}: {cause(error)}. "
            "Remedy: name a folder where you may write."
        ) from error
    old = list(_left_over(folder, bundle.name, files))
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
        if not _is_generated(path, first_line):
            what = "quantglow did not write it"
        elif _is_edited(path, comment):
            what = "it was edited, or an older version of quantglow wrote it"
        else:
            continue
        raise OptionError(
            f"{os.fspath(path)!r} would be overwritten, and {what}. "
            "Remedy: name another folder, such as a new one beside it, or move the file away."
        )


def _is_generated(path: Path, first_line: str) -> bool:
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


def build_contents(model: BundledModel, code: BundleCode, placement: Placement) -> Contents:
    """The object of a model, and what there is to know of it.  Raises ``BackendError``."""
    name, base = model.name, code.base
    program = code.build(model, placement)
    return Contents(
        model, base.target, program, input_tensors(name, base), output_tensors(name, base)
    )


def _bundle_files(bundle: Bundle, library: Library) -> dict[str, bytes]:
    """The contents of each file."""
    order = tuple(bundle.order()) if bundle.is_split else ()
    files: dict[str, bytes] = {}
    for function in bundle.functions:
        files |= _function_files(function, library, order)
    texts = {"main.c": example(bundle), "CMakeLists.txt": cmake_lists(bundle)}
    texts = {file: _sign(text, FIXED_NAMES[file][1]) for file, text in texts.items()}
    files |= {file: text.encode() for file, text in texts.items()}
    facts = _manifest(bundle, files)
    return {**files, f"{bundle.name}.json": (json.dumps(facts, indent=1) + "\n").encode()}


def _function_files(function: Contents, library: Library, order: Sequence[str]) -> dict[str, bytes]:
    """The files of a function; ``order``: what runs before and behind it."""
    name, program = function.name, function.program
    texts = {f"{name}.h": header(function, order)}
    if function.has_pool:
        texts |= pool_files(function)
    parts = {f"{part}.o": data for part, data in program.parts.items()}
    files = {f"{name}.o": program.code, **parts, **_weights_files(name, program)}
    files |= {file: text.encode() for file, text in texts.items()}
    return files | (_loadable_files(function) if library is Library.SHARED else {})


def _loadable_files(bundle: Contents) -> dict[str, bytes]:
    """The files for loaders.  Raises ``BackendError``."""
    name, program = bundle.name, bundle.program
    if bundle.target.is_module:
        return {f"{name}.wasm": wasm_module(bundle), f"{name}.mjs": _es_module(bundle).encode()}
    file = f"lib{name}.so"
    return {file: link_shared([program.code, *program.parts.values()], bundle.target, file)}


def _weights_files(name: str, program: ProgramObject) -> dict[str, bytes]:
    """The file of the weights, if they are not in the object."""
    match program.weights.placement:
        case Placement.OBJECT:
            return {}
        case Placement.C:
            return {f"{name}_weights.c": c_weights(name, program.weights).encode()}
        case Placement.BIN:
            return {f"{name}_weights.bin": b"".join(program.weights.pieces())}


def _refuse(kind: str, parts: dict[str, int], most: int, method: str = "") -> None:
    """Raise ``BackendError`` if the parts take more than ``most`` bytes, counted by a method."""
    total = sum(parts.values())
    if total > most:
        shown = " + ".join(f"{nbytes:,} {name}" for name, nbytes in parts.items())
        raise BackendError(
            f"the model needs {total:,} bytes ({shown}{method}), which is more than "
            f"max_{kind}={most:,}. "
            "Remedy: `quantglow inspect --stage memory` shows what each layer needs; use smaller "
            "inputs or a smaller network."
        )


def _sign(text: str, comment: str) -> str:
    """A text with its hash in a last line, a ``comment`` of its language."""
    return f"{text}{comment.format(f'{SIGNATURE} {_hash(text.encode())}')}\n"


def _is_edited(path: Path, comment: str) -> bool:
    """Whether a file is not as ``sign`` gave it."""
    text = path.read_text(encoding="utf-8", errors="replace")
    last = text.rfind(comment.split("{}")[0] + SIGNATURE)
    return last < 0 or _sign(text[:last], comment) != text


def _left_over(
    folder: str | os.PathLike[str], name: str, new: Mapping[str, bytes]
) -> Iterator[Path]:
    """Files of the earlier bundle of a name that the new one has not, as they were written.

    ``NAME.json`` lists them; one that is damaged lists none, and names with folders are left out:
    the file may be anybody's.
    """
    path = Path(folder)
    try:
        listed = json.loads(_regular(path / f"{name}.json"))["files"]
        digests = {str(file): str(facts["sha256"]) for file, facts in listed.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return
    for file, digest in digests.items():
        try:
            is_own = Path(file).name == file and _hash(_regular(path / file)) == digest
        except (OSError, ValueError):  # it is not there, no file, or has no name
            continue
        if is_own and file not in new:
            yield path / file


def _regular(path: Path) -> bytes:
    """The bytes of a file.  Raises ``OSError`` for a pipe, which may never end, too."""
    if not os.path.isfile(path):
        raise FileNotFoundError(path)
    return path.read_bytes()


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _manifest(bundle: Bundle, files: Mapping[str, bytes]) -> dict[str, Any]:
    """The contents of ``NAME.json``; ``files`` are those of the bundle beside it.

    The facts are those of the first function; ``segments`` has those of all.
    """
    first = bundle.functions[0]
    target = first.target
    return {
        "format": FORMAT,
        "quantglow": __version__,
        "source_hash": first.model.source_hash,
        "target": {
            "name": target.name,
            "triple": target.triple,
            "cpu": target.cpu,
            "features": target.features,
        },
        **_function_facts(first),
        **(_border_facts(bundle) if bundle.is_split else {}),
        "files": {
            file: {"nbytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for file, data in files.items()
        },
    }


def _border_facts(bundle: Bundle) -> dict[str, Any]:
    """The segments in the order of a run, and the values that the outputs of the model are."""
    return {
        "segments": [
            _function_facts(part) if isinstance(part, Contents) else asdict(part)
            for part in bundle.segments
        ],
        "results": [{"output": name, "value": value} for name, value in bundle.results],
    }


def _function_facts(bundle: Contents) -> dict[str, Any]:
    """Memory, inputs and outputs of a function."""
    program = bundle.program
    return {
        "name": bundle.name,
        "arena": {"nbytes": program.arena_nbytes, "align": ALIGNMENT},
        "stack_nbytes": program.stack.most_nbytes,
        "stack": asdict(program.stack),
        "code_nbytes": bundle.flash.code_nbytes,
        "flash_counted": bundle.flash.method,
        "weights": {"nbytes": program.weights.nbytes, "placement": str(program.weights.placement)},
        "inputs": [tensor.to_json() for tensor in bundle.inputs],
        "outputs": [tensor.to_json() for tensor in bundle.outputs],
        "needs": asdict(bundle.needs),
        "kernels": list(program.kernels),
    }


LEAST_STACK_NBYTES = 1 << 16
TEMPLATE = Path(__file__).with_name("module.mjs")
"""The ES module; words in ``__`` stand for what differs between models."""

ARRAYS = {
    "float": "Float32Array",
    "int8_t": "Int8Array",
    "uint8_t": "Uint8Array",
    "int16_t": "Int16Array",
    "int32_t": "Int32Array",
    "int64_t": "BigInt64Array",
}
"""Type of C -> typed array of JavaScript."""


def wasm_module(bundle: Contents) -> bytes:
    """``NAME.wasm``: memory, ``NAME_run``, and where free memory begins.

    Raises ``BackendError`` if there is no linker, and for models that need functions of C.
    """
    needs, program, file = bundle.needs, bundle.program, f"{bundle.name}.wasm"
    if missing := (*needs.libm, *needs.system, *needs.compiler):
        raise BackendError(
            f"a module of WebAssembly has no library, and the model calls {', '.join(missing)}. "
            "Remedy: quantize these operators, or leave library='shared' out and link the object "
            "with a library of C."
        )
    command = next(programs("wasm-ld"), None)
    if command is None:
        raise BackendError(
            "no linker for WebAssembly. Remedy: install lld, or `pip install ziglang`; or leave "
            "library='shared' out and link the object with wasm-ld yourself."
        )
    stack = max(LEAST_STACK_NBYTES, -(-2 * program.stack.most_nbytes // ALIGNMENT) * ALIGNMENT)
    exports = [f"--export={name}" for name in (f"{bundle.name}_run", "__heap_base")]
    options = ["--no-entry", "--strip-all", "--stack-first", "-z", f"stack-size={stack}"]
    return link(command, [program.code], [*options, *exports], file)


def _es_module(bundle: Contents) -> str:
    """The text of ``NAME.mjs``."""
    ends = {"inputs": bundle.inputs, "outputs": bundle.outputs}
    facts = {
        "name": bundle.name,
        "version": __version__,
        "sourceHash": bundle.model.source_hash,
        "arenaBytes": bundle.program.arena_nbytes,
        "align": ALIGNMENT,
        **{
            word: [
                {
                    "name": tensor.name,
                    "array": ARRAYS[tensor.c_type],
                    "shape": list(tensor.shape),
                    "size": tensor.size,
                    "bytes": tensor.nbytes,
                    "scale": tensor.scale,
                    "zeroPoint": tensor.zero_point,
                }
                for tensor in tensors
            ]
            for word, tensors in ends.items()
        },
    }
    words = {
        "__NAME__": bundle.name,
        "__FACTS__": json.dumps(facts, indent=2),
        "__RESULTS__": json.dumps([meaning for _, meaning in sorted(RESULTS.values())], indent=2),
    }
    text = TEMPLATE.read_text(encoding="utf-8")
    return re.sub("|".join(words), lambda match: words[match[0]], text)

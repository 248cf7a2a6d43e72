"""Files that commands read and write, and the models and samples in them.

A model is a saved one, or an ONNX file that is compiled now; ``-`` is a model on stdin.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from quantglow.api.compile import compile as compile_model
from quantglow.api.load import load
from quantglow.api.options import CompileOptions
from quantglow.cli.arguments import MODEL, option_values
from quantglow.cli.steps import step_words
from quantglow.runtime.compiled import CompiledModel
from quantglow.runtime.hybrid.fallback_model import FallbackModel
from quantglow.support.arrays import Array
from quantglow.support.errors import InputError, OptionError
from quantglow.support.files import cause, check_replacing, read_arrays, writing
from quantglow.support.options import declarations

SAVED = ".qgm"
MODELS = (SAVED, ".onnx")
"""Suffixes of model files that commands write."""
ARRAYS = (".npz",)
"""Suffixes of files with arrays; profiles are among them."""
TIMELINES = ("trace", "timeline")
FILES = ("model", "onnx", "calibration_data", "validation_data", "inputs", "output")
"""Options that name a timeline, and other files, of the commands that write timelines."""

INT8_SHARE, FLOAT_SHARE = 0.25, 0.5
"""Minimum size of a saved model, as a share of the size of the ONNX file.  Float weights become
int8; a float model may hold float16 weights twice, or fold half of them away."""

STDIN = "-"
ARCHIVE = b"PK"
"""First bytes of a saved model, which is an archive; no ONNX model begins so."""


def is_saved(model: str) -> bool:
    """Whether ``model`` is a file that quantglow saved."""
    return Path(model).suffix == SAVED


def check_onnx(model: str) -> None:
    """Raise ``OptionError`` for a saved model where the command needs an ONNX file."""
    if is_saved(model):
        raise OptionError(
            f"{model!r} was quantized or compiled already. Remedy: give the ONNX file that it was "
            "made of; `quantglow run`, `bench` and `inspect` take saved models."
        )


def check_writable(
    output: str,
    endings: tuple[str, ...] = (),
    inputs: Sequence[str] = (),
    share: float = 0.0,
) -> None:
    """Raise ``OptionError`` for an output that cannot be written, before the work begins.

    ``endings`` are the allowed suffixes; ``inputs`` are files that the command reads and must not
    overwrite; ``share`` is the minimum size of the output, as a share of the size of the first
    input.
    """
    if endings and Path(output).suffix not in endings:
        raise OptionError(f"output must end in {' or '.join(endings)}, got {output!r}")
    if any(_is_same_file(output, name) for name in inputs):
        raise OptionError(f"{output!r} would be read and overwritten. Remedy: another output name")
    try:
        nbytes = os.path.getsize(inputs[0]) if inputs and os.path.isfile(inputs[0]) else 0
        check_replacing(output, int(share * nbytes))
    except OSError as error:
        raise OptionError(
            f"cannot write {output!r}: {cause(error)}. Remedy: name a file in a folder that exists "
            "and has room, where you may write."
        ) from error


def check_timeline(options: Mapping[str, Any]) -> None:
    """Raise ``OptionError`` for a timeline that replaces a file which a command reads or writes."""
    timelines = [options[name] for name in TIMELINES if options.get(name) is not None]
    files = [options[name] for name in FILES if options.get(name) is not None]
    if any(_is_same_file(timeline, file) for timeline in timelines for file in files):
        raise OptionError(
            "trace: it is a file that the command reads or writes. Remedy: another name for the "
            "timeline."
        )


def _is_same_file(one: str, other: str) -> bool:
    """Whether two paths are those of one file, which need not exist."""
    try:
        return os.path.realpath(one) == os.path.realpath(other)
    except OSError:  # the current folder was deleted
        return one == other


def check_folder(folder: str) -> None:
    """Raise ``OptionError`` for a folder that cannot be written or made, before the work begins."""
    try:
        path = Path(folder).absolute()
        existing = next(parent for parent in (path, *path.parents) if os.path.exists(parent))
        check_replacing(existing / "quantglow.probe")
    except OSError as error:
        raise OptionError(
            f"cannot write files to {folder!r}: {cause(error)}. Remedy: name a folder that has "
            "room, where you may write."
        ) from error


def arrays_in(path: str) -> dict[str, Array]:
    """The arrays of an ``.npz`` file.  Raises ``InputError``."""
    try:
        return read_arrays(path)
    except (OSError, ValueError) as error:
        raise InputError(
            f"cannot read inputs {path!r}: {cause(error)}. "
            "Remedy: write them with numpy.savez(path, **feeds), one array for each input."
        ) from error


def write_arrays(path: str, arrays: Mapping[str, Array]) -> None:
    """Write arrays to an ``.npz`` file, all or nothing.  Texts become strings of fixed length,
    because objects would be pickled.
    """
    plain = {n: a.astype(np.str_) if a.dtype.hasobject else a for n, a in arrays.items()}
    with writing(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **dict[str, Any](plain))


@contextmanager
def from_stdin() -> Iterator[str]:
    """A file with the model on stdin, named ``stdin``.  Raises ``OptionError``."""
    if sys.stdin is None or sys.stdin.isatty():
        raise OptionError("no model is piped to stdin. Remedy: pipe one, or name a file.")
    content = sys.stdin.buffer.read()
    if not content:
        raise OptionError("no model came from stdin. Remedy: look at the command before the pipe.")
    with tempfile.TemporaryDirectory(prefix="quantglow-") as folder:
        path = Path(folder) / f"stdin{SAVED if content.startswith(ARCHIVE) else '.onnx'}"
        path.write_bytes(content)
        yield str(path)


def open_model(options: argparse.Namespace) -> CompiledModel | FallbackModel:
    """The compiled model of ``options``: a saved one, or an ONNX file."""
    code: Any = getattr(options, "code", "ignore")
    tune: Any = getattr(options, "tune", None)
    shared = option_values(options, [n for n in declarations(CompileOptions) if n in options])
    if is_saved(options.model):
        refuse_steps(options)
        return load(options.model, **shared, code=code, tune=tune)
    if code != "ignore":
        raise OptionError(
            f"--code is for saved models, {options.model!r} is ONNX. Remedy: omit it."
        )
    ends = option_values(options, MODEL)
    return compile_model(options.model, **shared, **ends, tune=tune)


def refuse_steps(options: argparse.Namespace) -> None:
    """Raise ``OptionError`` if steps are given for a saved model, and no ONNX file beside it."""
    if step_words(options) and not getattr(options, "onnx", None):
        raise OptionError(
            f"--before and --after are for ONNX models, {options.model!r} is a saved one. Remedy: "
            "give them where the model is compiled; a saved model has its steps."
        )


def refuse_shapes_of_saved(options: argparse.Namespace) -> None:
    """Raise ``OptionError`` if shapes are given for a saved model, which contains them."""
    if is_saved(options.model) and options.input_shapes:
        raise OptionError(
            f"input_shapes is for ONNX models, {options.model!r} is a saved one. Remedy: omit it; "
            "a model with free dimensions takes the shapes of what it is fed."
        )

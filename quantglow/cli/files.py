"""Files that commands read and write."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from quantglow.errors import InputError, OptionError
from quantglow.files import cause, check_replacing, read_arrays, writing
from quantglow.foreign_types import Array

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
    if any(is_same_file(output, name) for name in inputs):
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
    if any(is_same_file(timeline, file) for timeline in timelines for file in files):
        raise OptionError(
            "trace: it is a file that the command reads or writes. Remedy: another name for the "
            "timeline."
        )


def is_same_file(one: str, other: str) -> bool:
    """Whether two paths are those of one file, which need not exist."""
    try:
        return os.path.realpath(one) == os.path.realpath(other)
    except OSError:  # the current folder was deleted
        return one == other


def check_folder(folder: str) -> None:
    """Raise ``OptionError`` for a folder that cannot be written or made, before the work begins."""
    try:
        path = Path(folder).absolute()
        known = next(parent for parent in (path, *path.parents) if os.path.exists(parent))
        check_replacing(known / "quantglow.probe")
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

"""Weights that a model stores in files beside it.  Models are untrusted: no other file is read."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath, PureWindowsPath

import onnx

from quantglow.errors import ModelError
from quantglow.frontend.reading.proto import MAX_NBYTES, TOO_LARGE, all_tensors


def load_external_data(proto: onnx.ModelProto, origin: str, folder: Path | None) -> None:
    """Read weights stored beside the model, inside its folder only."""
    room = MAX_NBYTES
    for tensor in all_tensors(proto):
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        what = f"{origin}: external data of tensor {tensor.name!r}"
        if folder is None:
            raise ModelError(f"{what} needs the model's folder; pass the model as a path")
        tensor.raw_data = read_external(tensor, folder, what, room)
        room -= len(tensor.raw_data)
        tensor.data_location = onnx.TensorProto.DEFAULT
        del tensor.external_data[:]


def read_external(tensor: onnx.TensorProto, folder: Path, what: str, room: int) -> bytes:
    """The bytes of a tensor, ``room`` at most: many tensors may name one file, or a sparse one."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    path = safe_path(entries.get("location", ""), folder, what)
    try:
        with path.open("rb") as file:
            check_links(path, os.fstat(file.fileno()), what)
            size, offset = os.fstat(file.fileno()).st_size, int(entries.get("offset", 0))
            nbytes = int(entries.get("length", size - offset))
            if not 0 <= offset <= size or not 0 <= nbytes <= size - offset:
                raise ModelError(f"{what} lies outside the file {path.name!r}; it may be truncated")
            if nbytes > room:
                raise ModelError(f"{what}: {TOO_LARGE}")
            file.seek(offset)
            return file.read(nbytes)
    except (OSError, ValueError) as error:
        raise ModelError(f"{what} cannot be read: {error}") from None


def safe_path(location: str, folder: Path, what: str) -> Path:
    """The file ``location`` names in ``folder``.  Raises ``ModelError`` if it leaves the folder."""
    forms = (PurePosixPath(location), PureWindowsPath(location))
    leaves = any(form.is_absolute() or form.anchor or ".." in form.parts for form in forms)
    if not location or "\0" in location or leaves:
        raise ModelError(f"{what} has the path {location!r}, which leaves the model's folder")
    path = folder / location
    if not path.resolve().is_relative_to(folder.resolve()):
        raise ModelError(f"{what}: {location!r} links to a place outside the model's folder")
    if not path.is_file():
        raise ModelError(f"{what}: the file {location!r} is missing beside the model")
    return path


def check_links(path: Path, status: os.stat_result, what: str) -> None:
    """Raise ``ModelError`` for a file that has names (hard links) outside of its folder.

    Whoever may write into the folder could link files there that only the reader may read.
    """
    if status.st_nlink == 1:
        return
    inside = [e for e in os.scandir(path.parent) if e.inode() == status.st_ino]
    if len(inside) < status.st_nlink:
        raise ModelError(
            f"{what}: the file {path.name!r} has a hard link outside the model's folder, so it may "
            f"be another file of yours. Remedy: if it is the model's, replace it by a copy of "
            f"itself: cp {path.name} copy && mv copy {path.name}"
        )

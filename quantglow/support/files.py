"""Writing files whole or not at all, and reading arrays."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from quantglow.support.errors import FileFormatError
from quantglow.support.processes.threads import run_undisturbed

DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    KeyError,
    MemoryError,
    NotImplementedError,
    OverflowError,
    RuntimeError,
)
"""Exceptions of reading a damaged archive besides ``OSError`` and ``ValueError``."""

DAMAGED_CONTENT = (*DAMAGE, ValueError, TypeError, AttributeError, RecursionError)
"""Exceptions of making objects of a damaged archive's texts and arrays, besides ``OSError``."""

MAX_UNPACKED_NBYTES = 4 << 30
"""Maximum size of all compressed members of a file together, in bytes: a thousandth of it on disk
can expand to that."""

PROBE_NBYTES = 1 << 16
"""Size of the file that ``check_replacing`` writes."""

ZIP, NPY = b"PK", b"\x93NUMPY"
"""How files begin."""


@contextmanager
def writing(target: str | os.PathLike[str]) -> Iterator[Path]:
    """``replacing`` for a file that the user asked for.  Raises ``FileFormatError``."""
    try:
        with replacing(target) as temporary:
            yield temporary
    except OSError as error:
        raise _unwritable(target, error) from error


def check_writable(target: str | os.PathLike[str]) -> None:
    """Raise the ``FileFormatError`` that ``writing`` would raise, as far as it is known before."""
    try:
        check_replacing(target)
    except OSError as error:
        raise _unwritable(target, error) from error


def _unwritable(target: str | os.PathLike[str], error: OSError) -> FileFormatError:
    return FileFormatError(
        f"cannot write {os.fspath(target)!r}: {cause(error)}. Remedy: name a file in a folder "
        "that exists and has room, where you may write."
    )


def cause(error: Exception) -> str:
    """The system's message about a file, without its number and without the names of files that the
    user did not choose."""
    said = error.strerror if isinstance(error, OSError) else None
    return said or str(error)


@contextmanager
def replacing(target: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary file beside ``target`` that becomes it when the block ends well.

    It has the permissions of ``target``, or those of any new file.  A link stays: the file that it
    names is replaced.
    If the block raises, the temporary file vanishes and ``target`` stays as it was.
    Raises ``OSError``, for folders, devices and pipes, too.
    """
    path = _replaceable(target)
    temporary = _temporary_beside(path)
    try:
        with suppress(FileNotFoundError):
            temporary.chmod(stat.S_IMODE(path.stat().st_mode))
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def check_replacing(target: str | os.PathLike[str], nbytes: int = 0) -> None:
    """Raise the ``OSError`` that ``replacing`` would raise, or the lack of room for ``nbytes``.

    A small file is written and removed: what a folder allows cannot be told from its mode alone.
    """
    path = _replaceable(target)
    temporary = _temporary_beside(path)
    try:
        temporary.write_bytes(bytes(PROBE_NBYTES))
        free = shutil.disk_usage(temporary).free
    finally:
        temporary.unlink(missing_ok=True)
    if free < nbytes:
        text = f"{os.strerror(errno.ENOSPC)}: {free} bytes are free, at least {nbytes} needed"
        raise OSError(errno.ENOSPC, text, str(path))


def _replaceable(target: str | os.PathLike[str]) -> Path:
    path = Path(os.path.realpath(target))
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "It is a device or a pipe", str(path))
    return path


def _temporary_beside(path: Path) -> Path:
    """A new empty file.  Not by tempfile: its files are for this user only, and the umask cannot be
    read without changing it.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    return temporary


def read_arrays(path: str | os.PathLike[str]) -> dict[str, NDArray[Any]]:
    """The arrays of an ``.npz`` file.  Raises ``OSError``, or ``ValueError`` for what is none."""
    try:
        with open(path, "rb") as file:
            begin = file.read(len(NPY))
            if begin.startswith(NPY):
                raise ValueError("it holds one array without a name, as numpy.save writes it")
            if not begin.startswith(ZIP):
                raise ValueError("it is no .npz file" if begin else "it is empty")
            with zipfile.ZipFile(file) as archive:
                _check_unpacked_size(archive, file.seek(0, os.SEEK_END))
            return run_undisturbed(lambda: _read_arrays(file))
    except DAMAGE as error:
        raise ValueError(f"it is damaged: {error}") from error


def _read_arrays(file: IO[bytes]) -> dict[str, NDArray[Any]]:
    file.seek(0)
    with np.load(file, allow_pickle=False) as arrays:
        return {name: np.asarray(arrays[name]) for name in arrays.files}


def _check_unpacked_size(archive: zipfile.ZipFile, nbytes: int) -> None:
    """Raise ``ValueError`` where reading a file of ``nbytes`` would fill the memory.

    By the sizes of the archive's directory: no member gives more than it says there.  Members
    that are not compressed take no more than the file has, unless they share bytes of it.
    """
    sizes = {True: 0, False: 0}
    for info in archive.infolist():
        sizes[info.compress_type == zipfile.ZIP_STORED] += info.file_size
    if sizes[True] > nbytes:
        raise ValueError("its members overlap")
    if sizes[False] > MAX_UNPACKED_NBYTES:
        raise ValueError(
            f"its compressed arrays unpack to {sizes[False]} bytes, more than the "
            f"{MAX_UNPACKED_NBYTES} that are allowed; numpy.savez writes them as they are"
        )

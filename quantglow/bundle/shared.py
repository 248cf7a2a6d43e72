"""An object as a shared library, for ctypes, Rust or Go."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from shutil import which

from quantglow.backends.llvm.aot.weights import Placement
from quantglow.backends.llvm.isa.target import ObjectFormat, Target
from quantglow.backends.llvm.jit.host import host
from quantglow.errors import BackendError, OptionError

FLAGS = ("-z", "text", "-z", "noexecstack", "-z", "relro", "-s")
"""Code stays read-only and shared between processes, the stack is not executed, no local names."""

SECONDS = 600.0
"""Longest time that a linker may take."""


class Library(StrEnum):
    """The form of a model's code beside its header: ``OBJECT``: for linkers; ``SHARED``: for
    loaders, too."""

    OBJECT = "object"
    SHARED = "shared"


def check_shared(target: Target, placement: Placement) -> None:
    """Raise ``OptionError`` for systems without ELF loaders, and for constants in C."""
    if placement is Placement.C:
        raise OptionError(
            "library='shared' is linked without a compiler, and weights='c' needs one. Remedy: "
            "weights='object', or 'bin'."
        )
    if target.object_format is not ObjectFormat.ELF or "-none-" in target.triple:
        raise OptionError(
            f"library='shared' is for ELF systems, {target.name!r} is {target.triple}. "
            "Remedy: leave it out, and link the object with the tools of that system."
        )


def shared_library(codes: Sequence[bytes], target: Target, file: str) -> bytes:
    """The library called ``file`` of some objects, linked by the first linker that exists.

    Raises ``BackendError``.
    """
    command = next(linkers(target), None)
    if command is None:
        raise BackendError(
            f"no linker for {target.triple}. Remedy: install binutils or lld, or `pip install "
            "ziglang`; or leave library='shared' out and link the object yourself."
        )
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, file)
        given = [Path(folder, f"{index}.o") for index in range(len(codes))]
        for path, code in zip(given, codes, strict=True):
            path.write_bytes(code)
        ends = [f"-soname={file}", "-o", str(made), *map(str, given)]
        if is_compiler(command):
            ends[0] = f"-Wl,{ends[0]}"
        ran = subprocess.run([*command, *ends], capture_output=True, text=True, timeout=SECONDS)
        if ran.returncode:
            raise BackendError(f"{command[0]} made no library: {ran.stderr.strip()[-500:]}")
        return made.read_bytes()


def linkers(target: Target) -> Iterator[list[str]]:
    """Commands of the linkers that exist, the simplest first."""
    processor = target.triple.partition("-")[0]
    is_own = processor == host().triple.partition("-")[0]
    for name in (*(["ld"] if is_own else []), f"{processor}-linux-gnu-ld", "ld.lld"):
        if found := which(name):
            yield [found, "-shared", *FLAGS]
    through = ["-shared", "-nostdlib", f"-Wl,{','.join(FLAGS)}"]
    for name in (*(["cc"] if is_own else []), f"{processor}-linux-gnu-gcc"):
        if found := which(name):
            yield [found, *through]
    if find_spec("ziglang"):
        zig = (sys.executable, "-m", "ziglang", "cc", "-target", f"{processor}-linux-gnu")
        yield [*zig, *through]


def is_compiler(command: list[str]) -> bool:
    """Whether a command passes options of linkers on."""
    return "-nostdlib" in command

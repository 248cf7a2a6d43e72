"""Linkers of this machine: programs of binutils or lld, and those in the wheel of ziglang."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from shutil import which

from quantglow.backends.llvm.isa.target import Target
from quantglow.backends.llvm.jit.host import host
from quantglow.errors import BackendError

SECONDS = 600.0
"""Longest time that a linker may take."""

VERSIONS = range(30, 13, -1)
"""Versions of lld that systems install side by side."""


def programs(name: str) -> Iterator[list[str]]:
    """The commands of a program of lld: by its name, by name and version, then that of ziglang,
    which needs no compiler and no cache."""
    for file in (name, *(f"{name}-{version}" for version in VERSIONS)):
        if found := which(file):
            yield [found]
    if find_spec("ziglang"):
        yield [sys.executable, "-m", "ziglang", name]


def system_linkers(target: Target) -> Iterator[list[str]]:
    """The linkers of ELF objects that exist, the simplest first."""
    processor = target.triple.partition("-")[0]
    is_own = processor == host().triple.partition("-")[0] and not target.is_microcontroller
    cross = "arm-none-eabi-ld" if target.is_microcontroller else f"{processor}-linux-gnu-ld"
    for name in (*(["ld"] if is_own else []), cross):
        if found := which(name):
            yield [found]
    yield from programs("ld.lld")


def command_name(command: Sequence[str]) -> str:
    """The name of a linker, without its folder."""
    return Path(command[0]).name if len(command) == 1 else command[-1]


def linked(
    command: Sequence[str],
    codes: Sequence[bytes],
    options: Sequence[str],
    file: str,
    libraries: Sequence[str] = (),
) -> bytes:
    """The contents of ``file``, which a linker makes of objects and libraries.

    Raises ``BackendError``.
    """
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, file)
        given = [Path(folder, f"{index}.o") for index in range(len(codes))]
        for path, code in zip(given, codes, strict=True):
            path.write_bytes(code)
        words = [*command, *options, "-o", str(made), *map(str, given), *libraries]
        ran = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS)
        if ran.returncode:
            raise BackendError(f"{command[0]} made no {file}: {ran.stderr.strip()[-500:]}")
        return made.read_bytes()

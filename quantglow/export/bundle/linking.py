"""Linkers of this machine: shared libraries, and the bytes of flash that are linked.

Linkers are programs of binutils or lld, or those in the wheel of ziglang.  Shared libraries are for
ctypes, Rust or Go.

Linkers leave out what no call reaches: the run with an observer, the facts, and on WebAssembly and
ELF every function of an unused section.  So bytes of flash are those that the example program
links, or else those of the objects: a linker of this machine links the functions that the example
calls; a compiler for microcontrollers brings those of its library, too.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from subprocess import SubprocessError

from quantglow.codegen.llvm.isa.target import ObjectFormat, Target
from quantglow.codegen.llvm.machine import host
from quantglow.export.bundle.constants import Placement
from quantglow.export.bundle.object_tables import object_facts
from quantglow.support.errors import BackendError, OptionError

SECONDS = 600.0
"""Longest time that a linker may take."""

VERSIONS = range(30, 13, -1)
"""Versions of lld that systems install side by side."""

FLAGS = ("-z", "text", "-z", "noexecstack", "-z", "relro", "-s")
"""Code stays read-only and shared between processes, the stack is not executed, no local names."""

LIBRARIES = ("-Wl,--start-group", "-lc", "-lm", "-lgcc", "-Wl,--end-group")


def programs(name: str) -> Iterator[list[str]]:
    """The commands of a program of lld: by its name, by name and version, then that of ziglang,
    which needs no compiler and no cache."""
    for file in (name, *(f"{name}-{version}" for version in VERSIONS)):
        if path := which(file):
            yield [path]
    if find_spec("ziglang"):
        yield [sys.executable, "-m", "ziglang", name]


def system_linkers(target: Target) -> Iterator[list[str]]:
    """The linkers of ELF objects that exist, the simplest first."""
    processor = target.triple.partition("-")[0]
    is_own = processor == host().triple.partition("-")[0] and not target.is_microcontroller
    cross = "arm-none-eabi-ld" if target.is_microcontroller else f"{processor}-linux-gnu-ld"
    for name in (*(["ld"] if is_own else []), cross):
        if path := which(name):
            yield [path]
    yield from programs("ld.lld")


def _command_name(command: Sequence[str]) -> str:
    """The name of a linker, without its folder."""
    return Path(command[0]).name if len(command) == 1 else command[-1]


def link(
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
        output = Path(folder, file)
        objects = [Path(folder, f"{index}.o") for index in range(len(codes))]
        for path, code in zip(objects, codes, strict=True):
            path.write_bytes(code)
        words = [*command, *options, "-o", str(output), *map(str, objects), *libraries]
        ran = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS)
        if ran.returncode:
            raise BackendError(f"{command[0]} made no {file}: {ran.stderr.strip()[-500:]}")
        return output.read_bytes()


class Library(StrEnum):
    """The form of a model's code beside its header: ``OBJECT``: for linkers; ``SHARED``: for
    loaders, too: a shared library, or a module of WebAssembly."""

    OBJECT = "object"
    SHARED = "shared"


def check_shared(target: Target, placement: Placement) -> None:
    """Raise ``OptionError`` for systems without loaders, and for constants that loaders do not
    place."""
    is_module = target.is_module
    placements = (Placement.OBJECT,) if is_module else (Placement.OBJECT, Placement.BIN)
    if placement not in placements:
        raise OptionError(
            f"library='shared' for {target.name!r} has no place for weights={str(placement)!r}. "
            f"Remedy: weights={' or '.join(repr(str(p)) for p in placements)}."
        )
    is_elf = target.object_format is ObjectFormat.ELF and "-none-" not in target.triple
    if not is_module and not is_elf:
        raise OptionError(
            f"library='shared' is for ELF systems and WebAssembly, {target.name!r} is "
            f"{target.triple}. Remedy: leave it out, and link the object with the tools of that "
            "system."
        )


def link_shared(codes: Sequence[bytes], target: Target, file: str) -> bytes:
    """The library called ``file`` of some objects, linked by the first linker that exists.

    Raises ``BackendError``.
    """
    command = next(_library_linkers(target), None)
    if command is None:
        raise BackendError(
            f"no linker for {target.triple}. Remedy: install binutils or lld, or `pip install "
            "ziglang`; or leave library='shared' out and link the object yourself."
        )
    soname = f"-soname={file}"
    return link(command, codes, [f"-Wl,{soname}" if _is_compiler(command) else soname], file)


def _library_linkers(target: Target) -> Iterator[list[str]]:
    """Commands of the linkers that exist, the simplest first."""
    processor = target.triple.partition("-")[0]
    is_own = processor == host().triple.partition("-")[0]
    for command in system_linkers(target):
        yield [*command, "-shared", *FLAGS]
    for name in (*(["cc"] if is_own else []), f"{processor}-linux-gnu-gcc"):
        if path := which(name):
            yield [path, "-shared", "-nostdlib", f"-Wl,{','.join(FLAGS)}"]


def _is_compiler(command: Sequence[str]) -> bool:
    """Whether a command passes options of linkers on."""
    return "-nostdlib" in command


@dataclass(frozen=True)
class Flash:
    """Bytes of functions with their own constants, and of the weights; ``linker``: the program that
    linked them, empty where all bytes of the objects count."""

    code_nbytes: int
    weights_nbytes: int
    linker: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes of both."""
        return self.code_nbytes + self.weights_nbytes

    @property
    def method(self) -> str:
        """The words that say which bytes were counted."""
        if self.linker:
            return f"as {self.linker} links the example"
        return "all of the objects, as no linker for them was found: programs link fewer"


@dataclass(frozen=True)
class Linker:
    """A command that links programs, with its options before and after the objects."""

    command: Sequence[str]
    before: Sequence[str]
    after: Sequence[str] = ()


def _measure_linked(
    codes: Sequence[bytes], target: Target, roots: Sequence[str]
) -> tuple[int, str] | None:
    """Bytes that a program links of some objects, whose functions ``roots`` it calls, and the name
    of the linker; None where no linker of this machine links them."""
    for linker in program_linkers(target, roots):
        file = "example"
        try:
            program = link(linker.command, codes, linker.before, file, linker.after)
            return object_facts(program, target.object_format).loaded_nbytes, _command_name(
                linker.command
            )
        except (BackendError, OSError, SubprocessError):  # another one may do better
            continue
    return None


def program_linkers(target: Target, roots: Sequence[str]) -> Iterator[Linker]:
    """Commands that link programs for a target and leave out what its roots do not reach."""
    if target.is_module:
        exports = (f"--export={root}" for root in roots)
        options = ("--no-entry", "--gc-sections", "--strip-all", "--allow-undefined", *exports)
        yield from (Linker(command, options) for command in programs("wasm-ld"))
    elif target.object_format is ObjectFormat.ELF:
        first, *others = roots
        undefined = (word for root in others for word in ("-u", root))
        options = (
            "--gc-sections",
            "-s",
            "-e",
            first,
            *undefined,
            "--unresolved-symbols=ignore-all",
        )
        if target.is_microcontroller and (compiler := which("arm-none-eabi-gcc")):
            floats = ("-mfloat-abi=hard",) if target.triple.endswith("hf") else ()
            machine = ("-mthumb", f"-mcpu={target.cpu}", *floats, "-nostdlib")
            yield Linker([compiler], (*machine, f"-Wl,{','.join(options)}"), LIBRARIES)
        for command in system_linkers(target):
            yield Linker(command, options)


def measure_flash(
    codes: Sequence[bytes],
    target: Target,
    roots: Sequence[str],
    weights_nbytes: int,
    inside_nbytes: int,
) -> Flash:
    """The flash of some objects, which hold ``inside_nbytes`` of the weights."""
    linking = _measure_linked(codes, target, roots)
    if linking is None:
        loaded = sum(object_facts(code, target.object_format).loaded_nbytes for code in codes)
        linking = loaded, ""
    code_nbytes, linker = linking
    return Flash(code_nbytes - inside_nbytes, weights_nbytes, linker)

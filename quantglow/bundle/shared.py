"""Objects as a shared library, for ctypes, Rust or Go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from shutil import which

from quantglow.backends.llvm.aot.weights import Placement
from quantglow.backends.llvm.isa.target import ObjectFormat, Target
from quantglow.backends.llvm.jit.host import host
from quantglow.bundle.linkers import linked, system_linkers
from quantglow.errors import BackendError, OptionError

FLAGS = ("-z", "text", "-z", "noexecstack", "-z", "relro", "-s")
"""Code stays read-only and shared between processes, the stack is not executed, no local names."""


class Library(StrEnum):
    """The form of a model's code beside its header: ``OBJECT``: for linkers; ``SHARED``: for
    loaders, too: a shared library, or a module of WebAssembly."""

    OBJECT = "object"
    SHARED = "shared"


def check_shared(target: Target, placement: Placement) -> None:
    """Raise ``OptionError`` for systems without loaders, and for constants that loaders do not
    place."""
    is_module = target.is_module
    own = (Placement.OBJECT,) if is_module else (Placement.OBJECT, Placement.BIN)
    if placement not in own:
        raise OptionError(
            f"library='shared' for {target.name!r} has no place for weights={str(placement)!r}. "
            f"Remedy: weights={' or '.join(repr(str(p)) for p in own)}."
        )
    is_elf = target.object_format is ObjectFormat.ELF and "-none-" not in target.triple
    if not is_module and not is_elf:
        raise OptionError(
            f"library='shared' is for ELF systems and WebAssembly, {target.name!r} is "
            f"{target.triple}. Remedy: leave it out, and link the object with the tools of that "
            "system."
        )


def shared_library(codes: Sequence[bytes], target: Target, file: str) -> bytes:
    """The library called ``file`` of some objects, linked by the first linker that exists.

    Raises ``BackendError``.
    """
    command = next(library_linkers(target), None)
    if command is None:
        raise BackendError(
            f"no linker for {target.triple}. Remedy: install binutils or lld, or `pip install "
            "ziglang`; or leave library='shared' out and link the object yourself."
        )
    soname = f"-soname={file}"
    return linked(command, codes, [f"-Wl,{soname}" if is_compiler(command) else soname], file)


def library_linkers(target: Target) -> Iterator[list[str]]:
    """Commands of the linkers that exist, the simplest first."""
    processor = target.triple.partition("-")[0]
    is_own = processor == host().triple.partition("-")[0]
    for command in system_linkers(target):
        yield [*command, "-shared", *FLAGS]
    for name in (*(["cc"] if is_own else []), f"{processor}-linux-gnu-gcc"):
        if found := which(name):
            yield [found, "-shared", "-nostdlib", f"-Wl,{','.join(FLAGS)}"]


def is_compiler(command: Sequence[str]) -> bool:
    """Whether a command passes options of linkers on."""
    return "-nostdlib" in command

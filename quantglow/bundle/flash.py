"""Bytes of flash: those that the example program links, or else those of the objects.

Linkers leave out what no call reaches: the run with an observer, the facts, and on WebAssembly and
ELF every function of a section that nobody asks for.  So a linker of this machine links the
functions that the example calls; a compiler for microcontrollers brings those of its library, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from shutil import which
from subprocess import SubprocessError

from quantglow.backends.llvm.isa.target import ObjectFormat, Target
from quantglow.bundle.linkers import command_name, linked, programs, system_linkers
from quantglow.bundle.objects.facts import object_facts
from quantglow.errors import BackendError

LIBRARIES = ("-Wl,--start-group", "-lc", "-lm", "-lgcc", "-Wl,--end-group")


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


def linked_nbytes(
    codes: Sequence[bytes], target: Target, roots: Sequence[str]
) -> tuple[int, str] | None:
    """Bytes that a program links of some objects, whose functions ``roots`` it calls, and the name
    of the linker; None where no linker of this machine links them."""
    for linker in program_linkers(target, roots):
        file = "example"
        try:
            program = linked(linker.command, codes, linker.before, file, linker.after)
            return object_facts(program, target.object_format).loaded_nbytes, command_name(
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


def flash_of(
    codes: Sequence[bytes],
    target: Target,
    roots: Sequence[str],
    weights_nbytes: int,
    inside_nbytes: int,
) -> Flash:
    """The flash of some objects, which hold ``inside_nbytes`` of the weights."""
    linking = linked_nbytes(codes, target, roots)
    if linking is None:
        loaded = sum(object_facts(code, target.object_format).loaded_nbytes for code in codes)
        linking = loaded, ""
    code_nbytes, linker = linking
    return Flash(code_nbytes - inside_nbytes, weights_nbytes, linker)

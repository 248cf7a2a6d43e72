"""Functions that a program has to bring for a model: names without a definition in its object."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from quantglow.errors import BackendError

EVERYWHERE = {"memcpy", "memset", "_fltused"}
"""Functions that every program has, and the mark of float code on Windows."""

COMPILERS_OWN = "__"
"""Beginning of the functions of compilers' libraries: libgcc, compiler-rt, the Arm ABI."""

LIBM = {
    f"{name}{kind}"
    for name in (
        *("ceil", "floor", "trunc", "rint", "nearbyint", "round", "roundeven"),
        *("sqrt", "fma", "fmod", "fmin", "fmax", "exp", "exp2", "log", "log2", "pow", "sin", "cos"),
    )
    for kind in ("", "f")
}

SYSTEM = {"getauxval"}


@dataclass(frozen=True)
class Needs:
    """Functions beside memcpy and memset.

    libm      float functions of C
    system    functions that say what the processor has
    compiler  arithmetic that the processor lacks, in the compiler's library
    """

    libm: tuple[str, ...]
    system: tuple[str, ...]
    compiler: tuple[str, ...]

    def __str__(self) -> str:
        found = ", ".join((*self.libm, *self.system, *self.compiler))
        return f"memcpy, memset; {found or 'no other function'}"


def needs_of(undefined: Iterable[str], is_integer: bool) -> Needs:
    """The needs of an object; ``is_integer``: its model computes with integers only.

    Raises ``BackendError`` for functions that no program has, and for those of libm in an integer
    model.
    """
    names = [name for name in undefined if name not in EVERYWHERE]
    compiler = tuple(name for name in names if name.startswith(COMPILERS_OWN))
    libm = tuple(name for name in names if name in LIBM)
    system = tuple(name for name in names if name in SYSTEM)
    known = {*system, *compiler, *(() if is_integer else libm)}
    if unknown := [name for name in names if name not in known]:
        raise BackendError(
            f"the code of the model would call {', '.join(unknown)}, which a program need not have."
            " Remedy: another target; it is an error of quantglow."
        )
    return Needs(libm, system, compiler)

"""The x86 feature levels, and which of them this processor has."""

from __future__ import annotations

from functools import cache

from quantglow.backends.llvm.amx import tile_refusal
from quantglow.backends.llvm.host import host
from quantglow.backends.llvm.target import CORES, Core, Dot, Target
from quantglow.errors import BackendError

X86_TRIPLE = "x86_64-unknown-linux-gnu"

AMX = "amx-int8"
"""As ``avx512vnni``, with convolutions on tiles."""

WORDS = "+fast-dpwssd"
"""Without it LLVM takes ``vpdpwssd`` for slow on most processors and makes two instructions of it,
``vpmaddwd`` and ``vpaddd``, which compete for the same ports."""

_LEVELS = {
    AMX: ("x86-64-v4", f"+avx512vnni,+amx-tile,+amx-int8,{WORDS}", 64, Dot.VNNI, True),
    "avx512vnni": ("x86-64-v4", f"+avx512vnni,{WORDS}", 64, Dot.VNNI, True),
    "avxvnni": ("x86-64-v3", f"+avxvnni,{WORDS}", 32, Dot.VNNI, True),
    "avx2": ("x86-64-v3", "", 32, Dot.PAIRS, True),
    "x86-64": ("x86-64", "", 16, Dot.MADD, False),
}

LEVELS: tuple[str, ...] = tuple(_LEVELS)
"""The x86 feature levels, best first; each runs on every processor of a better one."""

_AVX512 = ("avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512vnni")
_NEEDS = {
    AMX: (*_AVX512, "amx-tile", "amx-int8"),
    "avx512vnni": _AVX512,
    "avxvnni": ("avx2", "fma", "bmi2", "avxvnni"),
    "avx2": ("avx2", "fma", "bmi2"),
    "x86-64": ("sse2",),
}


@cache
def host_features() -> frozenset[str]:
    """Names of what this processor has."""
    listed = host().features.split(",")
    return frozenset(name[1:] for name in listed if name.startswith("+"))


def runs_here(level: str) -> bool:
    """Whether code of a level can run on this processor, in this process."""
    return not _obstacle(level)


def _obstacle(level: str) -> str:
    """Why code of a level cannot run here, empty if it can; asks for permission to use tiles."""
    missing = [name for name in _NEEDS[level] if name not in host_features()]
    if missing:
        return f"this processor lacks {', '.join(missing)}"
    if level == AMX and (refusal := tile_refusal()):
        return f"Linux refuses AMX tiles to this process ({refusal})"
    return ""


@cache
def resolve(name: str) -> Target:
    """The target called ``native`` or one of ``LEVELS``, whose code can run in this process.

    Raises ``BackendError`` for unknown names and for levels that do not run here.
    """
    if name == "native":
        return _native()
    target = level_target(name)
    if obstacle := _obstacle(name):
        raise BackendError(
            f"target {name!r} does not run here: {obstacle}. Remedy: target='native'"
        )
    return target


def level_target(level: str) -> Target:
    """A level as data, to generate code that need not run here.  Raises ``BackendError``."""
    if level not in _LEVELS:
        raise BackendError(
            f"unknown target {level!r}; choose 'native' or one of {', '.join(LEVELS)}"
        )
    cpu, features, nbytes, dot, fma = _LEVELS[level]
    return Target(level, X86_TRIPLE, cpu, features, nbytes, dot, fma, tiles=level == AMX)


def _native() -> Target:
    this = host()
    level = next((name for name in LEVELS if runs_here(name)), None)
    if level is None or not this.triple.startswith("x86_64"):
        raise BackendError(f"no code generator for this processor ({this.triple})")
    _, _, nbytes, dot, fma = _LEVELS[level]
    return Target(
        name=level,
        triple=this.triple,
        cpu=this.cpu,
        features=f"{this.features},{WORDS}" if dot is Dot.VNNI else this.features,
        vector_nbytes=nbytes,
        dot=dot,
        fma=fma,
        vbmi=nbytes == 64 and "avx512vbmi" in host_features(),
        tiles=level == AMX,
        core=CORES.get(this.cpu, Core()),
    )

"""The feature levels of x86-64, and the cores that are known."""

from __future__ import annotations

from dataclasses import replace

from quantglow.codegen.llvm.isa.costs import Core
from quantglow.codegen.llvm.isa.target import Host, Level, Target, TargetFamily
from quantglow.codegen.llvm.isa.x86.features import DETECTION, tile_refusal
from quantglow.codegen.llvm.isa.x86.instructions import X86
from quantglow.codegen.llvm.isa.x86.products import X86ByteProducts

TRIPLE = "x86_64-unknown-linux-gnu"

AMX = "amx-int8"
"""As ``avx512vnni``, with convolutions on tiles."""

FAST_WORDS = "+fast-dpwssd"
"""Without it LLVM takes ``vpdpwssd`` for slow on most processors and makes two instructions of it,
``vpmaddwd`` and ``vpaddd``, which compete for the same ports."""

_SSE2 = X86(16, 16, unsigned_activations=True)
_AVX2 = replace(
    _SSE2,
    vector_nbytes=32,
    has_fma=True,
    shuffles_bytes=True,
    rounds_floats=True,
    products=X86ByteProducts.PAIRS,
)
_AVX_VNNI = replace(_AVX2, products=X86ByteProducts.VNNI)
_AVX512 = replace(_AVX_VNNI, vector_nbytes=64, registers=32, has_masks=True)

_NEEDS_AVX2 = ("avx2", "fma", "bmi2")
_NEEDS_AVX512 = ("avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512vnni")

LEVELS = (
    Level(
        AMX,
        "x86-64-v4",
        f"+avx512vnni,+amx-tile,+amx-int8,{FAST_WORDS}",
        replace(_AVX512, has_tiles=True),
        (*_NEEDS_AVX512, "amx-tile", "amx-int8"),
        tile_refusal,
    ),
    Level("avx512vnni", "x86-64-v4", f"+avx512vnni,{FAST_WORDS}", _AVX512, _NEEDS_AVX512),
    Level("avxvnni", "x86-64-v3", f"+avxvnni,{FAST_WORDS}", _AVX_VNNI, (*_NEEDS_AVX2, "avxvnni")),
    Level("avx2", "x86-64-v3", "", _AVX2, _NEEDS_AVX2),
    Level("x86-64", "x86-64", "", _SSE2, ("sse2",)),
)

ICE_LAKE = Core(
    issue=2.8,
    latency=9.0,
    weights=0.4,
    far_weights=2.0,
    crowded=1.0,
    finish=(0.7, 1.5, 1.5),
    overlap=30.0,
    large_pages=True,
    even_prefetch=True,
)
"""Fitted on a virtual processor, whose core may serve another one at the same time: then five
instructions in a cycle are for both.  See ``benchmarks/RESULTS.md``."""

CORES = {
    "cascadelake": ICE_LAKE,
    "cooperlake": ICE_LAKE,
    "emeraldrapids": ICE_LAKE,
    "graniterapids": ICE_LAKE,
    "icelake-client": ICE_LAKE,
    "icelake-server": ICE_LAKE,
    "rocketlake": ICE_LAKE,
    "sapphirerapids": ICE_LAKE,
    "tigerlake": ICE_LAKE,
}
"""By LLVM's name of the processor: Intel's with AVX-512 VNNI.  One with AMX, a virtual one that
LLVM takes for a Rocket Lake, was measured with the same numbers."""


def tune(level: Level, host: Host) -> Target:
    """A level for exactly this processor."""
    isa, features = level.isa, host.features
    assert isinstance(isa, X86)
    if isa.products is X86ByteProducts.VNNI:
        features = f"{features},{FAST_WORDS}"
    permutes = isa.vector_nbytes == 64 and host.has("avx512vbmi")
    core = CORES.get(host.cpu, Core())
    isa = replace(isa, permutes_bytes=permutes)
    return Target(level.name, host.triple, host.cpu, features, isa, core)


FAMILY = TargetFamily(TRIPLE, LEVELS, tune, detection=DETECTION)

"""The run-time system: walks a table of kernel calls, alone or together with other threads.

A table entry is four 64-bit words: kernel, arguments, work items, chunks.  With threads, one
inference is one parallel region: every thread walks the whole table.  Each entry's items are cut
in chunks; a thread claims its own chunks first and then any that nobody has claimed, so a worker
that the system keeps from running holds nobody up.  An entry begins when all chunks of the one
before are done.  Workers spin between inferences for a bounded time, then sleep.

The code stands in ``codegen/llvm/scheduler``; names in angle brackets there are those of the
target's ``WaitInstructions`` and of the constants below.

Claims carry the number of the inference (its epoch): a worker that comes late to an inference that
is over finds other claims there and goes back to waiting.
"""

from __future__ import annotations

import ctypes
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from quantglow.codegen.llvm.isa.target import Target
from quantglow.codegen.llvm.isa.waiting import WaitInstructions
from quantglow.codegen.llvm.table_walk import CALL_OF_ENTRY, RUN_ALONE, fill, read_template
from quantglow.runtime.jit.library import addresses

SERIAL = 0
"""Chunks of an entry that the calling thread does alone."""
MOST_THREADS = 32
"""Chunks are bits of a 32-bit word."""

POOL = {"epoch": 0, "stop": 64, "table": 128, "count": 136, "claims": 144, "sleepers": 192,
         "processors": 256}  # fmt: skip
"""Byte offsets in the shared state; what different threads write lies on different lines.  From
``processors`` on, each worker writes on which one it runs, once for each inference."""
CLAIM_WORDS = 4
"""Words of each entry: epoch and claimed chunks; chunks done; chunks; 0."""

SPIN_SECONDS = 1e-4
"""Time that a worker spins for the next inference before it sleeps."""
YIELD_AFTER = 4_000
"""Number of pauses between entries before the time slice is given away: threads may outnumber
cores."""

_WORDS = {
    **{f"pool.{name}": offset for name, offset in POOL.items()},
    "claim.words": CLAIM_WORDS,
    "claim.nbytes": 8 * CLAIM_WORDS,
    "serial": SERIAL,
    "yield_after": YIELD_AFTER,
    "entry": CALL_OF_ENTRY,
}
_DECLARATIONS, _SHARE, _BEGIN, _RUN_SHARED, _JOIN, _WORK, _SHUT = (
    read_template(name, _WORDS)
    for name in ("declarations", "share", "begin", "run_shared", "join", "work", "shut")
)
_INTERNAL_BEGIN = _BEGIN.replace("define", "define internal")


@dataclass(frozen=True)
class Entries:
    """C functions of the run-time system.

    run_alone    walks a table on the calling thread
    run_shared   walks one with the workers of a pool
    begin, join  walk one with threads that the caller brings, see ``join.ll``
    work, shut   are for workers of a pool
    """

    run_alone: Any
    run_shared: Any
    begin: Any
    join: Any
    work: Any
    shut: Any


@cache
def entries(target: Target) -> Entries:
    """The run-time system of a target, loaded once."""
    pointer, word = ctypes.c_void_p, ctypes.c_int64
    texts = run_time_texts(target)

    def function(name: str, *kinds: Any) -> Any:
        (address,) = addresses(target, [texts[name]], name)
        return ctypes.CFUNCTYPE(None, *kinds)(address)

    return Entries(
        function("run_alone", pointer, word),
        function("run_shared", pointer, pointer, word, word),
        function("begin", pointer, pointer, word),
        function("join", pointer, word, word),
        function("work", pointer, word, word, word),
        function("shut", pointer),
    )


def run_time_texts(target: Target) -> dict[str, str]:
    """The LLVM IR of the run-time system of a target, by the names of its functions."""
    bodies = {
        "run_alone": RUN_ALONE,
        "run_shared": _SHARE + _INTERNAL_BEGIN + _RUN_SHARED,
        "begin": _BEGIN,
        "join": _SHARE + _JOIN,
        "work": _SHARE + _WORK,
        "shut": _SHUT,
    }
    waiting = target.waiting
    return {name: fill_waits(_DECLARATIONS + text, waiting) for name, text in bodies.items()}


def fill_waits(text: str, waiting: WaitInstructions) -> str:
    """A text with the instructions that wait on a target."""
    return fill(text, {**asdict(waiting), "spin": round(SPIN_SECONDS * waiting.hertz)})

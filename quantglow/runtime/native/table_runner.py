"""The run-time system: walks a table of kernel calls, alone or together with other threads.

A table entry is four 64-bit words: kernel, arguments, work items, chunks.  With threads, one
inference is one parallel region: every thread walks the whole table.  Each entry's items are cut
in chunks; a thread claims its own chunks first and then any that nobody has claimed, so a worker
that the system keeps from running holds nobody up.  An entry begins when all chunks of the one
before are done.  Workers spin between inferences for a bounded time, then sleep.

Texts in angle brackets stand for the target's ``Waiting``.

Claims carry the number of the inference (its epoch): a worker that comes late to an inference that
is over finds other claims there and goes back to waiting.
"""

from __future__ import annotations

import ctypes
import re
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from quantglow.codegen.llvm.isa.target import Target
from quantglow.codegen.llvm.isa.waiting import Waiting
from quantglow.codegen.llvm.table_walk import CALL_OF_ENTRY, RUN_ALONE
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

_DECLARATIONS = """
<declarations>declare i32 @sched_yield()
declare i32 @sched_getcpu()
declare i64 @llvm.umax.i64(i64, i64)
"""

_SHARE = f"""
define internal void @share(ptr %pool, i64 %tid, i64 %threads, i64 %epoch) nounwind {{
entry:
  %tp = getelementptr i8, ptr %pool, i64 {POOL["table"]}
  %table = load ptr, ptr %tp
  %cp = getelementptr i8, ptr %pool, i64 {POOL["count"]}
  %count = load i64, ptr %cp
  %lp = getelementptr i8, ptr %pool, i64 {POOL["claims"]}
  %claims = load ptr, ptr %lp
  %first = icmp eq i64 %tid, 0
  %low = and i64 %epoch, 4294967295
  br label %body
body:
  %i = phi i64 [ 0, %entry ], [ %next, %continue ]
  %claim = getelementptr [{CLAIM_WORDS} x i64], ptr %claims, i64 %i
  %done = getelementptr i8, ptr %claim, i64 8
  %chp = getelementptr i8, ptr %claim, i64 16
  %given = load i64, ptr %chp
  %serial = icmp eq i64 %given, {SERIAL}
  %chunks = call i64 @llvm.umax.i64(i64 %given, i64 1)
  %ahead = mul i64 %tid, %chunks
  %start = udiv i64 %ahead, %threads
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %count
{CALL_OF_ENTRY}  br i1 %serial, label %alone, label %attempt
alone:
  br i1 %first, label %own, label %follow
own:
  call void %fn(ptr %args, i64 0, i64 %items)
  store atomic i64 1, ptr %done release, align 8
  br label %continue
follow:
  br i1 %more, label %peek, label %over
peek:
  %np1 = getelementptr i8, ptr %chp, i64 {8 * CLAIM_WORDS}
  %then = load i64, ptr %np1
  %again = icmp eq i64 %then, {SERIAL}
  br i1 %again, label %continue, label %wait
attempt:
  %a = phi i64 [ 0, %body ], [ %a, %lost ], [ %a1, %passed ]
  %at = add i64 %start, %a
  %chunk = urem i64 %at, %chunks
  %bit = shl i64 1, %chunk
  %word = load atomic i64, ptr %claim acquire, align 8
  %tag = lshr i64 %word, 32
  %mine = icmp eq i64 %tag, %low
  br i1 %mine, label %look, label %over
look:
  %taken = and i64 %word, %bit
  %free = icmp eq i64 %taken, 0
  br i1 %free, label %try, label %passed
try:
  %marked = or i64 %word, %bit
  %swap = cmpxchg ptr %claim, i64 %word, i64 %marked acq_rel acquire
  %won = extractvalue {{ i64, i1 }} %swap, 1
  br i1 %won, label %work, label %lost
lost:
  br label %attempt
work:
  %after = add i64 %chunk, 1
  %lo = mul i64 %items, %chunk
  %b = udiv i64 %lo, %chunks
  %hi = mul i64 %items, %after
  %f = udiv i64 %hi, %chunks
  %some = icmp slt i64 %b, %f
  br i1 %some, label %call, label %finished
call:
  call void %fn(ptr %args, i64 %b, i64 %f)
  br label %finished
finished:
  %old = atomicrmw add ptr %done, i64 1 acq_rel
  br label %passed
passed:
  %a1 = add i64 %a, 1
  %left = icmp slt i64 %a1, %chunks
  br i1 %left, label %attempt, label %wait
wait:
  %spins = phi i64 [ 0, %peek ], [ 0, %passed ], [ %spins1, %pause ], [ 0, %yield ]
  %now = load atomic i64, ptr %done acquire, align 8
  %all = icmp sge i64 %now, %chunks
  br i1 %all, label %continue, label %still
still:
  %current = load atomic i64, ptr %pool acquire, align 8
  %same = icmp eq i64 %current, %epoch
  %spins1 = add i64 %spins, 1
  %long = icmp sgt i64 %spins1, {YIELD_AFTER}
  br i1 %same, label %patient, label %over
patient:
  br i1 %long, label %yield, label %pause
pause:
  <pause>
  br label %wait
yield:
  %ignored = call i32 @sched_yield()
  br label %wait
continue:
  br i1 %more, label %body, label %over
over:
  ret void
}}
"""
"""Takes part in an inference until it is over.  Thread 0 does the serial entries without claiming
them; the others wait for the last of a row of such entries only, and for none at the end."""

_RUN_SHARED = f"""
define void @run_shared(ptr %pool, ptr %table, i64 %count, i64 %threads) nounwind {{
entry:
  %before = load atomic i64, ptr %pool acquire, align 8
  %epoch = add i64 %before, 1
  %tag = shl i64 %epoch, 32
  %lp = getelementptr i8, ptr %pool, i64 {POOL["claims"]}
  %claims = load ptr, ptr %lp
  br label %reset
reset:
  %i = phi i64 [ 0, %entry ], [ %next, %reset ]
  %claim = getelementptr [{CLAIM_WORDS} x i64], ptr %claims, i64 %i
  %done = getelementptr i8, ptr %claim, i64 8
  %chp = getelementptr i8, ptr %claim, i64 16
  %e = getelementptr [4 x i64], ptr %table, i64 %i
  %ep = getelementptr i8, ptr %e, i64 24
  %chunks = load i64, ptr %ep
  store i64 %chunks, ptr %chp
  store atomic i64 0, ptr %done release, align 8
  store atomic i64 %tag, ptr %claim release, align 8
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %count
  br i1 %more, label %reset, label %start
start:
  %tp = getelementptr i8, ptr %pool, i64 {POOL["table"]}
  store ptr %table, ptr %tp
  %cp = getelementptr i8, ptr %pool, i64 {POOL["count"]}
  store i64 %count, ptr %cp
  store atomic i64 %epoch, ptr %pool seq_cst, align 8
  %sp = getelementptr i8, ptr %pool, i64 {POOL["sleepers"]}
  %sleepers = load atomic i64, ptr %sp seq_cst, align 8
  %any = icmp sgt i64 %sleepers, 0
  br i1 %any, label %wake, label %go
wake:
  <wake>
  br label %go
go:
  call void @share(ptr %pool, i64 0, i64 %threads, i64 %epoch)
  ret void
}}
"""
"""Begins an inference, wakes sleeping workers and takes part as thread 0."""

_WORK = f"""
define void @work(ptr %pool, i64 %tid, i64 %threads, i64 %epoch) nounwind {{
entry:
  br label %idle
idle:
  %seen = phi i64 [ %epoch, %entry ], [ %now, %run ]
  %start = <clock>
  br label %spin
spin:
  %now = load atomic i64, ptr %pool seq_cst, align 8
  %changed = icmp ne i64 %now, %seen
  br i1 %changed, label %wake, label %still
still:
  <pause>
  %clock = <clock>
  %spent = sub i64 %clock, %start
  %tired = icmp ugt i64 %spent, <spin>
  br i1 %tired, label %sleep, label %spin
sleep:
  %sp = getelementptr i8, ptr %pool, i64 {POOL["sleepers"]}
  %s0 = atomicrmw add ptr %sp, i64 1 seq_cst
  <sleep>
  %s1 = atomicrmw sub ptr %sp, i64 1 seq_cst
  br label %spin
wake:
  %qp = getelementptr i8, ptr %pool, i64 {POOL["stop"]}
  %stop = load atomic i64, ptr %qp seq_cst, align 8
  %quit = icmp ne i64 %stop, 0
  br i1 %quit, label %done, label %run
run:
  %here = call i32 @sched_getcpu()
  %processor = sext i32 %here to i64
  %pp = getelementptr i8, ptr %pool, i64 {POOL["processors"]}
  %own = getelementptr i64, ptr %pp, i64 %tid
  store i64 %processor, ptr %own
  call void @share(ptr %pool, i64 %tid, i64 %threads, i64 %now)
  br label %idle
done:
  ret void
}}
"""
"""A worker: waits for inferences and takes part in each, until the pool is shut."""

_SHUT = f"""
define void @shut(ptr %pool) nounwind {{
  %qp = getelementptr i8, ptr %pool, i64 {POOL["stop"]}
  store atomic i64 1, ptr %qp seq_cst, align 8
  %old = atomicrmw add ptr %pool, i64 1 seq_cst
  <wake>
  ret void
}}
"""
"""Lets all workers end."""


@dataclass(frozen=True)
class Entries:
    """C functions of the run-time system."""

    run_alone: Any
    run_shared: Any
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
        function("work", pointer, word, word, word),
        function("shut", pointer),
    )


def run_time_texts(target: Target) -> dict[str, str]:
    """The LLVM IR of the run-time system of a target, by the names of its functions."""
    bodies = {
        "run_alone": RUN_ALONE,
        "run_shared": _SHARE + _RUN_SHARED,
        "work": _SHARE + _WORK,
        "shut": _SHUT,
    }
    waiting = target.waiting
    return {name: fill(_DECLARATIONS + text, waiting) for name, text in bodies.items()}


def fill(text: str, waiting: Waiting) -> str:
    """A text with the instructions that wait on a target."""
    parts = {**asdict(waiting), "spin": str(round(SPIN_SECONDS * waiting.hertz))}
    return re.sub(r"<(\w+)>", lambda match: parts.get(match[1], match[0]), text)

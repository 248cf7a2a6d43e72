"""The run-time system: walks a table of kernel calls, alone or with a pool of worker threads.

A table entry is four 64-bit words: kernel, arguments, work items, flags.  With threads, one
inference is one parallel region: every thread walks the whole table, takes its share of each
entry and meets the others at a barrier.  Workers spin between inferences for a bounded time, then
sleep on a futex.
"""

from __future__ import annotations

import ctypes
import os
import threading
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from quantglow.backends.llvm.library import addresses
from quantglow.backends.llvm.target import Target
from quantglow.types import Array

PARALLEL = 1
"""Flag: split the items among the threads (else thread 0 does them all)."""
BARRIER = 2
"""Flag: all threads wait for this entry before the next."""

POOL_WORDS = 64
"""64-bit words of the shared state, on their own cache lines: see ``_POOL``."""

_POOL = {"epoch": 0, "arrived": 64, "stop": 128, "table": 192, "count": 200, "base": 208,
         "sleepers": 256}  # fmt: skip

SPIN_CYCLES = 300_000
"""Cycles a worker spins for the next inference before it sleeps (about 0.1 ms)."""
YIELD_AFTER = 4_000
"""Pauses at a barrier before the time slice is given away (threads may outnumber cores)."""

_FUTEX = {"x86_64": 202, "aarch64": 98}

_IR = f"""
declare void @llvm.x86.sse2.pause()
declare i64 @llvm.readcyclecounter()
declare i64 @syscall(i64, ...)
declare i32 @sched_yield()

define void @run_alone(ptr %table, i64 %count) nounwind {{
entry:
  %some = icmp sgt i64 %count, 0
  br i1 %some, label %body, label %done
body:
  %i = phi i64 [ 0, %entry ], [ %next, %body ]
  %e = getelementptr [4 x i64], ptr %table, i64 %i
  %fn = load ptr, ptr %e
  %ap = getelementptr i8, ptr %e, i64 8
  %args = load ptr, ptr %ap
  %np = getelementptr i8, ptr %e, i64 16
  %items = load i64, ptr %np
  call void %fn(ptr %args, i64 0, i64 %items)
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %count
  br i1 %more, label %body, label %done
done:
  ret void
}}

define void @share(ptr %pool, i64 %tid, i64 %threads) nounwind {{
entry:
  %tp = getelementptr i8, ptr %pool, i64 {_POOL["table"]}
  %table = load ptr, ptr %tp
  %cp = getelementptr i8, ptr %pool, i64 {_POOL["count"]}
  %count = load i64, ptr %cp
  %bp = getelementptr i8, ptr %pool, i64 {_POOL["base"]}
  %base = load i64, ptr %bp
  %arrived = getelementptr i8, ptr %pool, i64 {_POOL["arrived"]}
  %first = icmp eq i64 %tid, 0
  %tid1 = add i64 %tid, 1
  br label %body
body:
  %i = phi i64 [ 0, %entry ], [ %next, %continue ]
  %met = phi i64 [ %base, %entry ], [ %met2, %continue ]
  %e = getelementptr [4 x i64], ptr %table, i64 %i
  %fn = load ptr, ptr %e
  %ap = getelementptr i8, ptr %e, i64 8
  %args = load ptr, ptr %ap
  %np = getelementptr i8, ptr %e, i64 16
  %items = load i64, ptr %np
  %fp = getelementptr i8, ptr %e, i64 24
  %flags = load i64, ptr %fp
  %par = and i64 %flags, {PARALLEL}
  %isp = icmp ne i64 %par, 0
  %lo = mul i64 %items, %tid
  %lo1 = udiv i64 %lo, %threads
  %hi = mul i64 %items, %tid1
  %hi1 = udiv i64 %hi, %threads
  %serial = select i1 %first, i64 %items, i64 0
  %b = select i1 %isp, i64 %lo1, i64 0
  %f = select i1 %isp, i64 %hi1, i64 %serial
  %work = icmp slt i64 %b, %f
  br i1 %work, label %call, label %after
call:
  call void %fn(ptr %args, i64 %b, i64 %f)
  br label %after
after:
  %bar = and i64 %flags, {BARRIER}
  %isb = icmp ne i64 %bar, 0
  br i1 %isb, label %arrive, label %continue
arrive:
  %met1 = add i64 %met, %threads
  %old = atomicrmw add ptr %arrived, i64 1 seq_cst
  br label %wait
wait:
  %spins = phi i64 [ 0, %arrive ], [ %spins1, %pause ], [ 0, %yield ]
  %now = load atomic i64, ptr %arrived acquire, align 8
  %all = icmp sge i64 %now, %met1
  br i1 %all, label %continue, label %still
still:
  %spins1 = add i64 %spins, 1
  %long = icmp sgt i64 %spins1, {YIELD_AFTER}
  br i1 %long, label %yield, label %pause
pause:
  call void @llvm.x86.sse2.pause()
  br label %wait
yield:
  %ignored = call i32 @sched_yield()
  br label %wait
continue:
  %met2 = phi i64 [ %met, %after ], [ %met1, %wait ]
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %count
  br i1 %more, label %body, label %done
done:
  ret void
}}

define void @run_shared(ptr %pool, ptr %table, i64 %count, i64 %threads) nounwind {{
  %tp = getelementptr i8, ptr %pool, i64 {_POOL["table"]}
  store ptr %table, ptr %tp
  %cp = getelementptr i8, ptr %pool, i64 {_POOL["count"]}
  store i64 %count, ptr %cp
  %arrived = getelementptr i8, ptr %pool, i64 {_POOL["arrived"]}
  %now = load atomic i64, ptr %arrived acquire, align 8
  %bp = getelementptr i8, ptr %pool, i64 {_POOL["base"]}
  store i64 %now, ptr %bp
  %old = atomicrmw add ptr %pool, i64 1 seq_cst
  %sp = getelementptr i8, ptr %pool, i64 {_POOL["sleepers"]}
  %sleepers = load atomic i64, ptr %sp seq_cst, align 8
  %any = icmp sgt i64 %sleepers, 0
  br i1 %any, label %wake, label %go
wake:
  %w = call i64 (i64, ...) @syscall(i64 FUTEX, ptr %pool, i32 129, i32 2147483647)
  br label %go
go:
  call void @share(ptr %pool, i64 0, i64 %threads)
  ret void
}}

define void @work(ptr %pool, i64 %tid, i64 %threads, i64 %epoch) nounwind {{
entry:
  br label %idle
idle:
  %seen = phi i64 [ %epoch, %entry ], [ %now, %run ]
  %start = call i64 @llvm.readcyclecounter()
  br label %spin
spin:
  %now = load atomic i64, ptr %pool seq_cst, align 8
  %changed = icmp ne i64 %now, %seen
  br i1 %changed, label %wake, label %still
still:
  call void @llvm.x86.sse2.pause()
  %clock = call i64 @llvm.readcyclecounter()
  %spent = sub i64 %clock, %start
  %tired = icmp ugt i64 %spent, {SPIN_CYCLES}
  br i1 %tired, label %sleep, label %spin
sleep:
  %sp = getelementptr i8, ptr %pool, i64 {_POOL["sleepers"]}
  %s0 = atomicrmw add ptr %sp, i64 1 seq_cst
  %low = trunc i64 %seen to i32
  %w = call i64 (i64, ...) @syscall(i64 FUTEX, ptr %pool, i32 128, i32 %low, ptr null)
  %s1 = atomicrmw sub ptr %sp, i64 1 seq_cst
  br label %spin
wake:
  %qp = getelementptr i8, ptr %pool, i64 {_POOL["stop"]}
  %stop = load atomic i64, ptr %qp seq_cst, align 8
  %quit = icmp ne i64 %stop, 0
  br i1 %quit, label %done, label %run
run:
  call void @share(ptr %pool, i64 %tid, i64 %threads)
  br label %idle
done:
  ret void
}}

define void @shut(ptr %pool) nounwind {{
  %qp = getelementptr i8, ptr %pool, i64 {_POOL["stop"]}
  store atomic i64 1, ptr %qp seq_cst, align 8
  %old = atomicrmw add ptr %pool, i64 1 seq_cst
  %w = call i64 (i64, ...) @syscall(i64 FUTEX, ptr %pool, i32 129, i32 2147483647)
  ret void
}}
"""


@dataclass(frozen=True)
class _Entries:
    """C functions of the run-time system."""

    run_alone: Any
    run_shared: Any
    work: Any
    shut: Any


@cache
def _entries(target: Target) -> _Entries:
    text = _IR.replace("FUTEX", str(_FUTEX[target.triple.split("-")[0]]))
    pointer, word = ctypes.c_void_p, ctypes.c_int64

    def function(name: str, *kinds: Any) -> Any:
        # Each entry is loaded from a module of its own; `share` becomes private to it.
        body = text.replace("define void @share", "define internal void @share")
        for other in ("run_alone", "run_shared", "work", "shut"):
            if other != name:
                body = body.replace(f"define void @{other}(", f"define internal void @{other}(")
        (address,) = addresses(target, [body], name)
        return ctypes.CFUNCTYPE(None, *kinds)(address)

    return _Entries(
        function("run_alone", pointer, word),
        function("run_shared", pointer, pointer, word, word),
        function("work", pointer, word, word, word),
        function("shut", pointer),
    )


class ThreadPool:
    """``threads - 1`` workers that join the caller of ``run``.  Shared by all models of a size."""

    def __init__(self, target: Target, threads: int) -> None:
        self.threads = threads
        self._entries = _entries(target)
        self._state = np.zeros(POOL_WORDS, np.int64)
        self._lock = threading.Lock()
        for tid in range(1, threads):
            arguments = (self._state.ctypes.data, tid, threads, 0)
            threading.Thread(
                target=self._entries.work, args=arguments, daemon=True, name=f"quantglow-{tid}"
            ).start()

    def run(self, table: Array) -> None:
        """Execute a table of kernel calls; one inference at a time."""
        if not len(table):
            return
        with self._lock:
            self._entries.run_shared(
                self._state.ctypes.data, table.ctypes.data, len(table), self.threads
            )

    def close(self) -> None:
        """Let the workers end."""
        self._entries.shut(self._state.ctypes.data)


_pools: dict[tuple[Target, int], ThreadPool] = {}
_pools_lock = threading.Lock()


def run_table(target: Target, threads: int, table: Array) -> None:
    """Execute a table (uint64 [n, 4]) on ``threads`` threads."""
    if threads == 1:
        _entries(target).run_alone(table.ctypes.data, len(table))
    else:
        _pool(target, threads).run(table)


def _pool(target: Target, threads: int) -> ThreadPool:
    key = (target, threads)
    pool = _pools.get(key)
    if pool is None:
        with _pools_lock:
            pool = _pools.get(key) or _pools.setdefault(key, ThreadPool(target, threads))
    return pool


def _forget_pools() -> None:
    """A forked child has no workers: it makes pools of its own."""
    global _pools_lock
    _pools_lock = threading.Lock()
    _pools.clear()


os.register_at_fork(after_in_child=_forget_pools)

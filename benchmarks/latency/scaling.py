"""Threads beyond the cores of this machine: simulated for up to 64, checked against 1 and 2.

Each kernel call is timed on one thread.  A call on several threads ends with its last chunk:
threads claim chunks as the run-time system lets them, each claim and each chunk that is done moves
a cache line from core to core, and so does the end for each thread.  Bytes of networks whose
weights no cache holds come at most at the rate of the memory.
"""

from __future__ import annotations

import argparse
import heapq
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np

from benchmarks.networks import registry
from benchmarks.support.arguments import add_models, add_samples, positive
from benchmarks.support.quantglow_runtime import compiled_model
from benchmarks.support.runtime import PRECISIONS
from quantglow.codegen.llvm.targets import resolve
from quantglow.evaluation.call_times import profile_calls, select_part
from quantglow.runtime.jit.library import addresses
from quantglow.runtime.native.buffers import aligned_bytes
from quantglow.runtime.native.executable import crew_for, split_chunks
from quantglow.runtime.native.peak import BLOCK_NBYTES, MEMORY_NBYTES, reading_kernel, reading_rate
from quantglow.runtime.native.table_runner import SERIAL
from quantglow.runtime.native.threads import run_table

ENTRIES, CHUNKS = 1000, 4
"""Rows of a table that two threads share, and the chunks of each: long enough that both take
some."""
COLUMNS = ("network", "threads", "measured ms", "simulated ms", "speed-up", "uneven chunks")
LOSSES = ("claims and ends", "calls on one thread", "memory")


@dataclass(frozen=True)
class Machine:
    """``line``: seconds to move a cache line between cores; ``core`` and ``memory``: bytes a
    second that one core, and all of them, read from memory."""

    line: float
    core: float
    memory: float

    def rate(self, threads: int) -> float:
        """Bytes a second that some threads read from memory."""
        return min(threads * self.core, self.memory)


@dataclass(frozen=True)
class Call:
    """A kernel call: seconds on one thread, work items, generator's work, bytes from memory."""

    seconds: float
    items: int
    work: float
    nbytes: float = 0.0


@dataclass
class Run:
    """Seconds of a simulated inference, and where they are lost beyond an even division."""

    even: float = 0.0
    uneven: float = 0.0
    claims: float = 0.0
    serial: float = 0.0
    memory: float = 0.0

    @property
    def seconds(self) -> float:
        """The time of the inference."""
        return self.even + self.uneven + self.claims + self.serial + self.memory


def simulated(calls: Sequence[Call], threads: int, machine: Machine) -> Run:
    """An inference on so many threads; a short one stays on one."""
    run, threads = Run(), crew_for(sum(call.work for call in calls), threads)
    for call in calls:
        run.even += call.seconds / threads
        chunks = chunks_on(call, threads)
        if threads == 1:
            continue
        if chunks == SERIAL:
            run.serial += call.seconds * (1 - 1 / threads)
            continue
        end = ends_at(chunk_seconds(call, chunks), threads)
        run.uneven += end - call.seconds / threads
        run.claims += moves(chunks, threads) * machine.line
        run.memory += max(0.0, call.nbytes / machine.rate(threads) - end)
    return run


def chunks_on(call: Call, threads: int) -> int:
    """Chunks in which the run-time system divides a call."""
    return int(split_chunks(np.array([call.items]), np.array([call.work]), threads)[0])


def chunk_seconds(call: Call, chunks: int) -> list[float]:
    """The time of each chunk: whole items, as even as they can be."""
    bounds = [call.items * chunk // chunks for chunk in range(chunks + 1)]
    each = call.seconds / call.items
    return [each * (end - begin) for begin, end in pairwise(bounds)]


def ends_at(chunks: Sequence[float], threads: int) -> float:
    """When the last chunk ends: whoever is free takes the next one."""
    free = [0.0] * threads
    for seconds in chunks:
        heapq.heappush(free, heapq.heappop(free) + seconds)
    return max(free)


def moves(chunks: int, threads: int) -> int:
    """Moves of cache lines in a call: a claim and an end of each chunk, which follow each other,
    and each thread's look at the end."""
    return 2 * chunks + threads


def machine_of(memory: float) -> Machine:
    """This machine, with the memory of another one.  ``memory``: bytes a second."""
    target = resolve("native")
    (kernel,) = addresses(target, [reading_kernel(target, BLOCK_NBYTES)])
    block = aligned_bytes(BLOCK_NBYTES)
    block[:] = 0
    pointers = np.array([block.ctypes.data], np.uint64)
    table = np.array([[kernel, pointers.ctypes.data, CHUNKS, CHUNKS]] * ENTRIES, np.uint64)
    both = seconds_of(lambda: run_table(target, 2, table), 50)
    alone = seconds_of(lambda: run_table(target, 1, table), 50)
    line = max(0.0, both - alone / 2) / ENTRIES / moves(CHUNKS, 2)
    return Machine(line, reading_rate(target, 1, MEMORY_NBYTES), memory)


def seconds_of(call: Callable[[], object], repeats: int) -> float:
    """Median duration of a call."""
    call()
    collected = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        collected.append(time.perf_counter() - start)
    return median(collected)


def add_arguments(command: argparse.ArgumentParser) -> None:
    add_models(command)
    add_samples(command)
    command.add_argument("--precision", choices=PRECISIONS, default="int8")
    command.add_argument("--threads", type=positive, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
    command.add_argument("--batch", type=positive, default=1)
    command.add_argument("--cores", type=positive, default=2, help="that this machine has")
    command.add_argument("--memory", type=positive, default=300, help="GB/s of all cores together")
    command.add_argument("--cache", type=positive, default=32, help="MB of the last-level cache")


def run(options: argparse.Namespace) -> int:
    """Print a Markdown table."""
    machine = machine_of(1e9 * options.memory)
    print(f"A cache line moves in {1e9 * machine.line:.0f} ns; one core reads ", end="")
    print(f"{machine.core / 1e9:.1f} GB/s from memory.\n")
    print("|", " | ".join([*COLUMNS, *LOSSES]), "|")
    print("| --- " * len([*COLUMNS, *LOSSES]) + "|")
    for name in options.models:
        times = {
            count: measured(name, options, count) for count in options.threads[: options.cores]
        }
        calls = calls_of(name, options)
        alone = simulated(calls, 1, machine).seconds
        for threads in options.threads:
            actual = simulated(calls, threads, machine)
            known = f"{1e3 * times[threads]:.3f}" if threads in times else ""
            cells = [name, threads, known, f"{1e3 * actual.seconds:.3f}"]
            cells.append(f"{alone / actual.seconds:.1f}")
            losses = (actual.uneven, actual.claims, actual.serial, actual.memory)
            cells += [f"{share / actual.seconds:.0%}" for share in losses]
            print("|", " | ".join(map(str, cells)), "|", flush=True)
    return 0


def compiled(name: str, options: argparse.Namespace, threads: int) -> tuple[Any, Any]:
    """A compiled network and a sample."""
    model = compiled_model(name, options.precision, threads, options.batch, options.samples)
    (feeds,) = registry.network(name).feeds(1, seed=1, batch=options.batch)
    return model, feeds


def measured(name: str, options: argparse.Namespace, threads: int) -> float:
    """Seconds of an inference on threads that this machine has, without entering from Python."""
    model, feeds = compiled(name, options, threads)
    executable, ours = select_part(model.build, feeds)
    with executable.bound(ours, executable.new_outputs()) as table:
        return seconds_of(lambda: run_table(executable.target, executable.crew, table), 100)


def calls_of(name: str, options: argparse.Namespace) -> list[Call]:
    """The calls of a network, timed on one thread."""
    model, feeds = compiled(name, options, 1)
    executable, _ = select_part(model.build, feeds)
    far = sum(array.nbytes for array in executable.loaded.constant_arrays) > 2**20 * options.cache
    times = profile_calls(model.build, feeds).calls
    rows = zip(times, executable.binding.items.tolist(), executable.binding.work, strict=False)
    return [Call(t.seconds, n, float(work), t.nbytes if far else 0.0) for t, n, work in rows]

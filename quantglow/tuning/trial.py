"""Trials: kernels of one task in memory, compared and timed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from quantglow.backends.llvm.isa.choices import Choice
from quantglow.backends.llvm.jit.cache import ObjectCache
from quantglow.backends.llvm.jit.library import KernelLibrary
from quantglow.backends.llvm.kernel import KernelCall
from quantglow.backends.llvm.runtime.buffers import Allocate
from quantglow.backends.llvm.runtime.loaded import allocator
from quantglow.backends.llvm.runtime.table_runner import SERIAL
from quantglow.backends.llvm.runtime.threads import run_table
from quantglow.foreign_types import Array
from quantglow.instr.program import Buffer, View
from quantglow.lazy import cached_property
from quantglow.tuning.tasks import Task

NEAR_NBYTES, FAR_NBYTES = 2**18, 2**23
"""Weights of a network up to the first stay in the caches of a core; of the second one surely not.
"""
SAMPLE_SECONDS = 5e-4
"""Minimum duration of a sample."""
MOST_COPIES = 64
UNWRITTEN = 0x5A
"""Bytes of results before a kernel runs."""


@dataclass
class Trial:
    """Kernels of a task on random data.

    ``weights_nbytes``: bytes of weights read before the same ones are read again: those of the
    whole network.
    """

    task: Task
    weights_nbytes: int
    _memory: dict[Buffer, Array] = field(default_factory=dict)
    _library: KernelLibrary = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._library = KernelLibrary(self.task.target, ObjectCache(None))

    @cached_property
    def arena(self) -> Allocate:
        """The allocator of activations, as programs have one."""
        return allocator(self.task.target)

    def loaded(self, choice: Choice) -> LoadedKernel | None:
        """The kernel of a choice, ready to run; None where the task has no such choice."""
        kernel = self.task.kernel(choice)
        if kernel is None:
            return None
        call = kernel.call()
        (address,) = self._library.load([call.ir])
        return LoadedKernel(self, call, address)

    @cached_property
    def expected(self) -> bytes:
        """The results of the default."""
        found = self.loaded(self.task.default)
        assert found is not None
        return found.results()

    def memory(self, view: View) -> Array:
        """The memory of a view's buffer, filled with random values of its type."""
        buffer = view.buffer
        if buffer not in self._memory:
            made = self.arena(buffer.nbytes + self.task.target.isa.slack_nbytes)
            fill(made, view)
            self._memory[buffer] = made
        return self._memory[buffer]


def fill(memory: Array, view: View) -> None:
    """Random values: all codes of integers alike, floats of a normal distribution."""
    rng = np.random.default_rng(0)
    if view.type.dtype.is_float:
        count = len(memory) // 4
        memory[: 4 * count].view(np.float32)[:] = rng.standard_normal(count, np.float32)
    else:
        memory[:] = rng.integers(0, 256, len(memory), np.uint8)


@dataclass
class LoadedKernel:
    """One kernel with its operands in memory."""

    trial: Trial
    call: KernelCall
    address: int

    def results(self) -> bytes:
        """All bytes of the buffer of results after a run."""
        output = self.trial.task.step.output
        memory = self.trial.memory(output)
        inputs = {view.buffer for view in self.trial.task.step.inputs}
        if output.buffer in inputs:
            fill(memory, output)
        else:
            memory[:] = UNWRITTEN
        run_table(self.trial.task.target, 1, self.table[:1])
        return memory[: output.buffer.nbytes].tobytes()

    def seconds(self) -> float:
        """Seconds of one run, the mean of as many as take ``SAMPLE_SECONDS``."""
        target, rounds, spent = self.trial.task.target, 0, 0.0
        while spent < SAMPLE_SECONDS:
            start = time.perf_counter()
            run_table(target, 1, self.table)
            spent += time.perf_counter() - start
            rounds += 1
        return spent / rounds / len(self.table)

    @cached_property
    def table(self) -> Array:
        """A row for each copy of the constants."""
        arrays = [pointer for pointer in self.call.pointers if not isinstance(pointer, View)]
        own = max(1, sum(array.nbytes for array in arrays))
        spread = min(self.trial.weights_nbytes, FAR_NBYTES)
        copies = 1 if spread < NEAR_NBYTES else min(-(-spread // own), MOST_COPIES)
        rows = [self._pointers() for _ in range(copies)]
        self._kept = np.array(rows, np.uint64)
        addresses = self._kept.ctypes.data + np.arange(copies) * self._kept.strides[0]
        table = np.zeros((copies, 4), np.uint64)
        table[:, 0], table[:, 1] = self.address, addresses
        table[:, 2], table[:, 3] = self.call.items, SERIAL
        return table

    def _pointers(self) -> list[int]:
        """Addresses of all operands, those of constants new ones."""
        found = []
        for pointer in self.call.pointers:
            if isinstance(pointer, View) and pointer.buffer.value is None:
                found.append(self.trial.memory(pointer).ctypes.data + pointer.offset_bytes)
                continue
            if isinstance(pointer, View):
                assert pointer.buffer.value is not None
                found.append(self._copied(pointer.buffer.value) + pointer.offset_bytes)
            else:
                found.append(self._copied(pointer))
        return found

    def _copied(self, array: Array) -> int:
        """The address of a new copy, which lives as long as this."""
        copy = self._allocate(array.nbytes + self.trial.task.target.isa.slack_nbytes)
        copy[: array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        copy[array.nbytes :] = 0
        self._copies.append(copy)
        return int(copy.ctypes.data)

    @cached_property
    def _allocate(self) -> Allocate:
        """One allocator for all copies: in a network, constants lie together, in large pages where
        the core wants these."""
        return allocator(self.trial.task.target)

    @cached_property
    def _copies(self) -> list[Array]:
        return []


def timed(kernels: Sequence[LoadedKernel], samples: int) -> Array:
    """Seconds [kernels, samples]: in each round a sample of each, after a run that is not timed."""
    found = np.empty((len(kernels), samples))
    for kernel in kernels:
        run_table(kernel.trial.task.target, 1, kernel.table)
    for column in range(samples):
        for row, kernel in enumerate(kernels):
            found[row, column] = kernel.seconds()
    return found

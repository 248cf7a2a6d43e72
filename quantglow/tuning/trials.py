"""Tasks, the convolutions and products of a program whose form, tile and order can be chosen, and
trials: kernels of one task compared and timed in memory.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from quantglow.codegen.llvm.cache import ObjectCache
from quantglow.codegen.llvm.emission import with_operands
from quantglow.codegen.llvm.isa.costs import Choices, KernelChoice
from quantglow.codegen.llvm.isa.target import Target
from quantglow.codegen.llvm.kernel import Kernel, KernelCall, task_name
from quantglow.codegen.llvm.kernels.tunable import KernelForms, kernel_forms
from quantglow.ir.program.program import Buffer, Compute, Instruction, Program, View
from quantglow.ir.symbolic.guards import Guards
from quantglow.ir.symbolic.size import find_guards, likely
from quantglow.runtime.jit.library import KernelLibrary
from quantglow.runtime.native.buffers import Allocate
from quantglow.runtime.native.loaded import allocator
from quantglow.runtime.native.table_runner import SERIAL
from quantglow.runtime.native.threads import run_table
from quantglow.support.arrays import Array
from quantglow.support.classes import cached_property

NEAR_NBYTES, FAR_NBYTES = 2**18, 2**23
"""Weights of a network up to the first stay in the caches of a core; of the second one surely not.
"""
SAMPLE_SECONDS = 5e-4
"""Minimum duration of a sample."""
MOST_COPIES = 64
UNWRITTEN = 0x5A
"""Bytes of results before a kernel runs."""


@dataclass(frozen=True, eq=False)
class Task:
    """Equal instructions of a program: ``uses`` of them.

    ``key``: see ``task_name``.  ``default``: the choice of the cost model.  Free sizes are those
    of the hints while the task is measured.
    """

    key: str
    step: Compute
    target: Target
    forms: KernelForms
    default: KernelChoice
    uses: int = 1

    @cached_property
    def choices(self) -> list[KernelChoice]:
        """All choices, the default first, then by modeled cycles; of equal ones those nearest to
        the default first."""
        return sorted(self.forms.choices(self.step, self.target), key=self._rank)

    def _rank(self, choice: KernelChoice) -> tuple[bool, float, int]:
        rank = (choice.panels_outer, choice.unroll, choice.prefetch)
        usual = (self.default.panels_outer, self.default.unroll, self.default.prefetch)
        others = sum(a != b for a, b in zip(rank, usual, strict=True))
        return choice != self.default, self.cycles(choice), others

    def cycles(self, choice: KernelChoice) -> float:
        """Cycles of the cost model."""
        return self.forms.cycles(self.step, self.target, choice)

    def kernel(self, choice: KernelChoice) -> Kernel | None:
        """The kernel of a choice; None where the task has no such choice."""
        return self.forms.kernel(self.step, self.target, choice)

    @property
    def guards(self) -> Guards | None:
        """The guards of its free sizes, which the kernel takes as operands; None without any."""
        sizes = (size for view in self.step.views for size in (*view.shape, *view.strides))
        return find_guards(sizes)

    @property
    def shape(self) -> str:
        """The work in one line."""
        (x, w), y = self.step.inputs[:2], self.step.output
        sizes = ["x".join(map(str, view.shape)) for view in (x, w, y)]
        return f"{sizes[0]} * {sizes[1]} = {sizes[2]} {x.type.dtype}"


def find_tasks(program: Program, target: Target) -> list[Task]:
    """The distinct tasks of a program, in the order of execution."""
    target = replace(target, choices=Choices())
    tasks: dict[str, Task] = {}
    uses: Counter[str] = Counter()
    waiting: list[Instruction] = list(reversed(program.instructions))
    while waiting:
        step = waiting.pop()
        waiting.extend(reversed(step.steps))
        if not isinstance(step, Compute) or (forms := kernel_forms(step, target)) is None:
            continue
        if (default := forms.default(step, target)) is None:
            continue
        key = task_name(step, target)
        uses[key] += 1
        tasks.setdefault(key, Task(key, step, target, forms, default))
    return [replace(task, uses=uses[key]) for key, task in tasks.items()]


@dataclass
class KernelTrial:
    """Kernels of a task on random data.

    ``weights_nbytes``: bytes of weights read before the same ones are read again: those of the
    whole network.
    """

    task: Task
    weights_nbytes: int
    _memory: dict[Buffer, Array] = field(default_factory=dict)

    @cached_property
    def library(self) -> KernelLibrary:
        """The kernels in memory; none of them goes to the cache."""
        return KernelLibrary(self.task.target, ObjectCache(None))

    @cached_property
    def arena(self) -> Allocate:
        """The allocator of activations, as programs have one."""
        return allocator(self.task.target)

    def loaded(self, choice: KernelChoice) -> LoadedKernel | None:
        """The kernel of a choice, ready to run; None where the task has no such choice."""
        kernel = self.task.kernel(choice)
        if kernel is None:
            return None
        call, sizes = kernel.call(), list[int]()
        if (guards := self.task.guards) is not None:
            operands = len(call.pointers), self.task.target.isa.index
            text, names = with_operands(call.ir, *operands)
            call = replace(call, code=text)
            sizes = [guards.names[name].at(guards.hints) for name in names]
        (address,) = self.library.load([call.ir])
        return LoadedKernel(self, call, address, sizes)

    @cached_property
    def expected(self) -> bytes:
        """The results of the default."""
        kernel = self.loaded(self.task.default)
        assert kernel is not None
        return kernel.results()

    def memory(self, view: View) -> Array:
        """The memory of a view's buffer, filled with random values of its type."""
        buffer = view.buffer
        if buffer not in self._memory:
            array = self.arena(int(likely(buffer.nbytes)) + self.task.target.isa.slack_nbytes)
            _fill(array, view)
            self._memory[buffer] = array
        return self._memory[buffer]


def _fill(memory: Array, view: View) -> None:
    """Random values: all codes of integers alike, floats of a normal distribution."""
    rng = np.random.default_rng(0)
    if view.type.dtype.is_float:
        count = len(memory) // 4
        memory[: 4 * count].view(np.float32)[:] = rng.standard_normal(count, np.float32)
    else:
        memory[:] = rng.integers(0, 256, len(memory), np.uint8)


@dataclass
class LoadedKernel:
    """One kernel with its operands in memory; ``sizes``: those that it takes as operands."""

    trial: KernelTrial
    call: KernelCall
    address: int
    sizes: Sequence[int] = ()
    _copies: list[Array] = field(default_factory=list)

    def results(self) -> bytes:
        """All bytes of the buffer of results after a run."""
        output = self.trial.task.step.output
        memory = self.trial.memory(output)
        inputs = {view.buffer for view in self.trial.task.step.inputs}
        if output.buffer in inputs:
            _fill(memory, output)
        else:
            memory[:] = UNWRITTEN
        run_table(self.trial.task.target, 1, self.table[:1])
        return memory[: likely(output.buffer.nbytes)].tobytes()

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
        nbytes = max(1, sum(array.nbytes for array in arrays))
        spread = min(self.trial.weights_nbytes, FAR_NBYTES)
        copies = 1 if spread < NEAR_NBYTES else min(-(-spread // nbytes), MOST_COPIES)
        rows = [self._pointers() for _ in range(copies)]
        self._rows = np.array(rows, np.uint64)
        addresses = self._rows.ctypes.data + np.arange(copies) * self._rows.strides[0]
        table = np.zeros((copies, 4), np.uint64)
        table[:, 0], table[:, 1] = self.address, addresses
        table[:, 2], table[:, 3] = likely(self.call.items), SERIAL
        return table

    def _pointers(self) -> list[int]:
        """Addresses of all operands, those of constants new ones, and sizes."""
        addresses = []
        for pointer in self.call.pointers:
            if not isinstance(pointer, View):
                addresses.append(self._copy(pointer))
            elif pointer.buffer.value is None:
                memory = self.trial.memory(pointer)
                addresses.append(memory.ctypes.data + int(likely(pointer.offset_bytes)))
            else:
                addresses.append(self._copy(pointer.buffer.value) + int(pointer.offset_bytes))
        return [*addresses, *self.sizes]

    def _copy(self, array: Array) -> int:
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


def time_kernels(kernels: Sequence[LoadedKernel], samples: int) -> Array:
    """Seconds [kernels, samples]: in each round a sample of each, after a run that is not timed."""
    seconds = np.empty((len(kernels), samples))
    for kernel in kernels:
        run_table(kernel.trial.task.target, 1, kernel.table)
    for column in range(samples):
        for row, kernel in enumerate(kernels):
            seconds[row, column] = kernel.seconds()
    return seconds

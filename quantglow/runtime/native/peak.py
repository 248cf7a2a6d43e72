"""Peak rates of this processor: products and bytes a second, measured with generated code.

The product kernels keep everything in registers; the reading kernel only loads and adds.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from quantglow.codegen.llvm.builder import Builder
from quantglow.codegen.llvm.isa.dot import STEP_NBYTES, DotProduct
from quantglow.codegen.llvm.isa.interface import MatrixTiles
from quantglow.codegen.llvm.isa.target import Target
from quantglow.codegen.llvm.values import I32, I64, Value, splat, vector
from quantglow.ir.types import DType
from quantglow.runtime.jit.library import addresses
from quantglow.runtime.native.buffers import Allocate, aligned_bytes
from quantglow.runtime.native.table_runner import MOST_THREADS, SERIAL
from quantglow.runtime.native.threads import run_table
from quantglow.support.arrays import Array

ROUNDS = 4096
"""Rounds of one work item of a product kernel."""
BLOCK_NBYTES = 64 * 1024
"""Bytes that one work item of the reading kernel reads."""
CACHED_NBYTES = 256 * 1024
"""Size of memory that fits a second-level cache, in bytes."""
MEMORY_NBYTES = 256 * 2**20
"""Size of memory that no cache holds, in bytes."""
UNROLL = 8
SECONDS = 0.02
"""Minimum duration of one measurement."""
REPEATS = 12
"""Measurements; the best counts, since others can only have been disturbed."""


@dataclass(frozen=True)
class Peak:
    """The limits of ``threads`` threads of a target, each in units a second."""

    threads: int
    integer_macs: float
    float_macs: float
    cached_nbytes: float
    """Read from the second-level cache."""
    memory_nbytes: float
    """Read from memory."""

    def macs(self, is_integer: bool) -> float:
        """Multiply-accumulates a second in one precision."""
        return self.integer_macs if is_integer else self.float_macs


def measure_peak(target: Target, threads: int = 1) -> Peak:
    """Measure for about a second."""
    kernels = _integer_kernel(target), ProductKernel(target, target.dot_product(DType.F32))
    rates = [_product_rate(target, threads, kernel) for kernel in kernels]
    rates += [reading_rate(target, threads, nbytes) for nbytes in (CACHED_NBYTES, MEMORY_NBYTES)]
    return Peak(threads, *rates)


def _integer_kernel(target: Target) -> ProductKernel | TileKernel:
    """The fastest int8 products of a target."""
    if target.isa.tiles is not None:
        return TileKernel(target, target.isa.tiles)
    stored = DType.U8 if target.isa.unsigned_activations else DType.I8
    return ProductKernel(target, target.dot_product(stored))


def _product_rate(target: Target, threads: int, kernel: ProductKernel | TileKernel) -> float:
    """Multiply-accumulates a second of all threads."""
    scratch = aligned_bytes(2 * target.vector_nbytes)
    scratch[:] = 0
    run = KernelRunner(target, threads, kernel.text(), [scratch])
    return kernel.macs * run.items_per_second(64 * threads)


def reading_rate(
    target: Target, threads: int, nbytes: int, allocate: Allocate = aligned_bytes
) -> float:
    """Bytes a second that all threads together read, over and over the same ``nbytes``."""
    run = reader(target, threads, nbytes, allocate)
    return BLOCK_NBYTES * run.items_per_second(nbytes // BLOCK_NBYTES)


def reader(
    target: Target, threads: int, nbytes: int, allocate: Allocate = aligned_bytes
) -> KernelRunner:
    """Reads blocks of ``BLOCK_NBYTES``, over and over the same ``nbytes``."""
    memory = allocate(nbytes)
    memory[:] = 0
    return KernelRunner(target, threads, reading_kernel(target, nbytes), [memory])


@dataclass
class ProductKernel:
    """``sums += operand . weights`` in as many independent sums as registers hold."""

    target: Target
    dot: DotProduct
    b: Builder = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.b = Builder(index=self.target.isa.index)

    @property
    def sums(self) -> int:
        """Sums in registers: enough to hide latency, few enough for the operands beside them."""
        return 20 if self.target.registers >= 32 else 10

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one work item."""
        per_lane = 1 if self.dot.is_float else 4
        return ROUNDS * self.sums * self.dot.lanes * per_lane

    def text(self) -> str:
        b, dot, isa = self.b, self.dot, self.target.isa
        (data,) = b.kernel(1)
        operand = dot.operand(b, data)
        weights = dot.weights(b, data, 0)
        zero = splat(dot.kind, "0.0" if dot.is_float else "0")
        with b.loop("%begin", "%end"):
            carried = [(dot.operand_kind, v) for v in operand]
            loop = b.begin_loop(ROUNDS, [*carried, *[(dot.kind, zero)] * self.sums])
            operand = tuple(loop.carried[: len(carried)])
            sums: list[Value] = []
            for old in loop.carried[len(carried) :]:
                operand = tuple(isa.unknown(b, dot.operand_kind, v) for v in operand)
                sums.append(dot.accumulate(b, old, operand, weights))
            sums = b.end_loop(loop, [*operand, *sums])[len(carried) :]
            for value in sums:
                isa.use(b, dot.kind, value)
        return b.finish()


@dataclass
class TileKernel:
    """Products of matrix registers, added to as many independent sums as convolutions have."""

    target: Target
    tiles: MatrixTiles
    sums = 4

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one work item."""
        lanes = self.tiles.row_nbytes // STEP_NBYTES
        return ROUNDS * self.sums * self.tiles.rows * lanes * self.tiles.row_nbytes

    def text(self) -> str:
        b, tiles = Builder(index=self.target.isa.index), self.tiles
        b.kernel(1)
        tiles.configure(b, [(tiles.rows, tiles.row_nbytes)] * tiles.registers)
        with b.loop("%begin", "%end"), b.loop(0, ROUNDS):
            for register in range(self.sums):
                tiles.multiply(b, register, self.sums, self.sums + 1)
        tiles.release(b)
        return b.finish()


def reading_kernel(target: Target, total_nbytes: int) -> str:
    """Adds up every vector of each work item's block; ``total_nbytes`` is a power of two."""
    b, kind, nbytes = (
        Builder(index=target.isa.index),
        vector(target.f32_lanes, I32),
        target.vector_nbytes,
    )
    (data,) = b.kernel(1)
    with b.loop("%begin", "%end") as item:
        offset = b.op("and", I64, b.mul(item, BLOCK_NBYTES), str(total_nbytes - 1))
        block = b.at(data, offset)
        loop = b.begin_loop(BLOCK_NBYTES // (UNROLL * nbytes), [(kind, splat(kind, "0"))] * UNROLL)
        at = b.at(block, b.mul(loop.index, UNROLL * nbytes))
        loaded = [b.load(kind, b.at(at, i * nbytes)) for i in range(UNROLL)]
        sums = [b.op("add", kind, s, v) for s, v in zip(loop.carried, loaded, strict=True)]
        for value in b.end_loop(loop, sums):
            target.isa.use(b, kind, value)
    return b.finish()


class KernelRunner:
    """One kernel, run on all threads."""

    def __init__(self, target: Target, threads: int, text: str, pointers: Sequence[Array]) -> None:
        self.target, self.threads, self.memory = target, threads, pointers
        self.pointers = np.array([p.ctypes.data for p in pointers], np.uint64)
        (address,) = addresses(target, [text])
        chunks = SERIAL if threads == 1 else min(8 * threads, MOST_THREADS)
        self.table = np.array([[address, self.pointers.ctypes.data, 0, chunks]], np.uint64)

    def items_per_second(self, items: int) -> float:
        """The best rate; ``items`` grow until they take long enough."""
        while self.seconds(items) < SECONDS:
            items *= 2
        return items / min(self.seconds(items) for _ in range(REPEATS))

    def seconds(self, items: int) -> float:
        """Duration of a run over so many work items."""
        self.table[0, 2] = items
        start = time.perf_counter()
        run_table(self.target, self.threads, self.table)
        return time.perf_counter() - start

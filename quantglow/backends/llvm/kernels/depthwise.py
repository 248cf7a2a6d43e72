"""Depthwise convolution: one input channel for each output channel.

Integer form: four *rows* of the input are interleaved byte by byte, so that one dot-product lane
multiplies four rows of one channel.  An interleaved column serves every tap of that column for
several output rows at once; neighbouring output columns share interleaved columns in registers.
Where a chunk of channels is narrower than a vector, several output columns lie side by side.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from quantglow.backends.llvm.builder import Builder, Value, vector
from quantglow.backends.llvm.kernel import KernelCall
from quantglow.backends.llvm.kernels.depthwise_float import FloatDepthwise
from quantglow.backends.llvm.kernels.dot import dot_product
from quantglow.backends.llvm.kernels.epilogue import Epilogue, channel_order
from quantglow.backends.llvm.kernels.geometry import Image
from quantglow.backends.llvm.kernels.partial import store_partial
from quantglow.backends.llvm.target import Target
from quantglow.graph.node import Constant
from quantglow.instr.program import Compute
from quantglow.ops import Conv
from quantglow.types import Array, DType

ROWS = 4
"""Rows in a quad: the bytes of a dot-product lane."""
LANE_NBYTES = 16
"""A 128-bit lane: the narrowest chunk of channels."""
LARGEST_TAPS = 81
"""Larger windows would unroll to too much code; they run as grouped convolutions."""


def has_depthwise_form(step: Compute, target: Target) -> bool:
    """Whether this file has a kernel for the convolution."""
    conv = step.op
    assert isinstance(conv, Conv)
    kh, kw = conv.w.type.shape[:2]
    if not conv.depthwise or conv.residual is not None or kh * kw > LARGEST_TAPS:
        return False
    return (conv.x.type.dtype, conv.type.dtype) in ((DType.U8, DType.U8), (DType.F32, DType.F32))


def depthwise_call(step: Compute, target: Target) -> KernelCall:
    """The kernel call of a depthwise convolution."""
    assert isinstance(step.op, Conv)
    if step.op.x.type.dtype is DType.F32:
        return FloatDepthwise(step, step.op, target).call()
    return _Depthwise(step, step.op, target).call()


@dataclass(frozen=True)
class RowPlan:
    """Output rows computed together, and the input rows they need, four to a quad."""

    outputs: int
    quads: tuple[tuple[int, ...], ...]

    def uses(self, taps: list[int], stride: int) -> list[list[int]]:
        """For each output row, the quads that hold any of its taps."""
        return [
            [q for q, rows in enumerate(self.quads) if {r * stride + t for t in taps} & set(rows)]
            for r in range(self.outputs)
        ]


def plan_rows(height: int, taps: list[int], stride: int) -> RowPlan:
    """The plan with the fewest dot products and shuffles for each output row."""

    def plan(outputs: int) -> RowPlan:
        rows = sorted({r * stride + t for r in range(outputs) for t in taps})
        quads = [tuple(rows[i : i + ROWS]) for i in range(0, len(rows), ROWS)]
        return RowPlan(outputs, tuple(quads))

    def cost(candidate: RowPlan) -> float:
        dots = sum(map(len, candidate.uses(taps, stride)))
        return (dots + len(candidate.quads)) / candidate.outputs

    return min((plan(n) for n in range(1, min(height, 4) + 1)), key=cost)


@dataclass(frozen=True)
class Chunk:
    """``count`` runs of ``width`` channels from ``first``; ``valid`` of each are real."""

    first: int
    width: int
    valid: int
    count: int = 1


def cut_channels(channels: int, vector_nbytes: int) -> list[Chunk]:
    """Whole vectors, then halves, quarters …, the last padded to a lane."""
    chunks = []
    full, rest = divmod(channels, vector_nbytes)
    if full:
        chunks.append(Chunk(0, vector_nbytes, vector_nbytes, full))
    first, width = full * vector_nbytes, vector_nbytes // 2
    while rest and width >= LANE_NBYTES:
        if rest >= width:
            chunks.append(Chunk(first, width, width))
            first, rest = first + width, rest - width
        width //= 2
    if rest:
        chunks.append(Chunk(first, LANE_NBYTES, rest))
    return chunks


@dataclass
class _Depthwise:
    """Generator of one integer depthwise kernel."""

    step: Compute
    conv: Conv
    target: Target
    b: Builder = field(default_factory=Builder)

    def __post_init__(self) -> None:
        self.x, self.y = Image.of(self.step.inputs[0]), Image.of(self.step.output)
        self.dot = dot_product(self.target, is_float=False)
        self.epilogue = Epilogue(self.conv, self.target)
        self.epilogue.check()
        kh, kw = self.conv.w.type.shape[:2]
        self.row_taps = [k * self.conv.dilations[0] for k in range(kh)]
        self.column_taps = [k * self.conv.dilations[1] for k in range(kw)]
        self.rows = plan_rows(self.y.height, self.row_taps, self.conv.strides[0])
        self.uses = self.rows.uses(self.row_taps, self.conv.strides[0])
        self.chunks = cut_channels(self.y.channels, self.target.vector_nbytes)

    # -- the call

    def call(self) -> KernelCall:
        groups = -(-self.y.height // self.rows.outputs)
        outputs = self.y.count * self.y.height * self.y.width * self.y.channels
        return KernelCall(
            ir=self.text(groups),
            pointers=(self.step.inputs[0], self.step.output, *self.constants()),
            items=self.y.count * groups,
            work=float(outputs * len(self.row_taps) * len(self.column_taps)),
            label=f"depthwise {self.rows.outputs} rows",
        )

    def constants(self) -> tuple[Array, Array, Array]:
        """Weights, bias and multipliers, chunk by chunk in the order of the code."""
        w, b = self.conv.w, self.conv.b
        assert isinstance(w, Constant) and isinstance(b, Constant)
        zero_point = self.conv.x.type.params.zero_point
        sums = w.value.astype(np.int64).sum(axis=(0, 1, 2))
        bias = (b.value.astype(np.int64) - zero_point * sums).astype(np.int32)
        lanes = [c for chunk in self.chunks for c in self._lane_channels(chunk)]
        weights = [self._chunk_weights(w.value[:, :, 0], c) for c in lanes]
        scale = self.epilogue.multipliers()
        return (
            np.concatenate([piece.view(np.uint8).reshape(-1) for piece in weights]),
            _by_lane(bias, lanes),
            _by_lane(scale, lanes),
        )

    def _lane_channels(self, chunk: Chunk) -> list[Array]:
        """For each run of a chunk: int [4, lanes], the channel of each sum, -1 for none."""
        order = channel_order(self.dot.lanes, 4, packed=True) % chunk.width
        channels = np.where(order < chunk.valid, order + chunk.first, -1)
        return [np.where(channels < 0, -1, channels + i * chunk.width) for i in range(chunk.count)]

    def _chunk_weights(self, w: Array, channels: Array) -> Array:
        """Packed weights [column taps, (output row, quad) pairs, 4, …] of one run."""
        extended = np.concatenate([w, np.zeros_like(w[..., :1])], axis=2)
        stride, pieces = self.conv.strides[0], []
        for column in range(len(self.column_taps)):
            for row, quads in enumerate(self.uses):
                for quad in quads:
                    pieces.append(
                        [self._row_weights(extended[:, column], r - row * stride, channels)
                         for r in self._padded_quad(quad)]
                    )  # fmt: skip
        return self.dot.pack(np.moveaxis(np.array(pieces, np.int8), 1, -1))

    def _padded_quad(self, quad: int) -> list[int]:
        rows = self.rows.quads[quad]
        return [*rows, *(-1_000_000,) * (ROWS - len(rows))]

    def _row_weights(self, w: Array, tap: int, channels: Array) -> Array:
        """The weights that multiply an input row at distance ``tap``; zero when it is no tap."""
        if tap not in self.row_taps:
            return np.zeros(channels.shape, np.int8)
        return np.asarray(w[self.row_taps.index(tap)][channels])

    @property
    def pairs(self) -> int:
        """(output row, quad) pairs of one column tap."""
        return sum(map(len, self.uses))

    @property
    def run_nbytes(self) -> int:
        """Packed weight bytes of one run of channels."""
        return len(self.column_taps) * self.pairs * 4 * self.dot.weight_nbytes

    # -- loops

    def text(self, groups: int) -> str:
        b, run = self.b, 0
        x, y, w, bias, scale = b.kernel(5)
        with b.loop("%begin", "%end") as item:
            image, group = b.divide(item, groups)
            top = self._top(group)
            x_row = b.at(x, self._sum(image, self.x.batch_pitch, top,
                                      self.conv.strides[0] * self.x.row_pitch))  # fmt: skip
            y_row = b.at(y, self._sum(image, self.y.batch_pitch, top, self.y.row_pitch))
            for chunk in self.chunks:
                with b.loop(0, chunk.count) as index:
                    number = b.add(index, run)
                    channel = b.add(b.mul(index, chunk.width), chunk.first)
                    constants = b.mul(number, 4 * self.target.vector_nbytes)
                    place = _Place(
                        b.at(x_row, channel),
                        b.at(y_row, channel),
                        b.at(w, b.mul(number, self.run_nbytes)),
                        b.at(bias, constants),
                        b.at(scale, constants),
                    )
                    self.columns(chunk, place)
                run += chunk.count
        return b.finish()

    def _top(self, group: Value) -> Value:
        """The first output row of a group; the last group overlaps the one before."""
        b, last = self.b, self.y.height - self.rows.outputs
        start = b.mul(group, self.rows.outputs)
        if self.y.height % self.rows.outputs == 0:
            return start
        return b.call("llvm.umin.i64", "i64", ("i64", start), ("i64", str(last)))

    def _sum(self, i: Value, i_pitch: int, j: Value, j_pitch: int) -> Value:
        b = self.b
        return b.add(b.mul(i, i_pitch), b.mul(j, j_pitch)) if i != "0" else b.mul(j, j_pitch)

    def columns(self, chunk: Chunk, place: _Place) -> None:
        """All output columns of a row group in blocks of side-by-side pixels; the last overlaps."""
        b = self.b
        side = self.target.vector_nbytes // chunk.width
        blocks, rest = divmod(self.y.width, side)
        advance = side * self.conv.strides[1]
        carried = self._carried(advance)
        place = place.with_constants(*self._constants(place))
        kinds = [self.dot.bytes_kind] * (4 * len(self.rows.quads) * len(carried))
        if blocks:
            first = [
                v for c in carried for v in self.interleaved(chunk, place.x, c - advance, side)
            ]
            loop = b.begin_loop(blocks, list(zip(kinds, first, strict=True)))
            moved = place.at_column(b, loop.index, advance * self.x.column_pitch,
                                    side * self.y.column_pitch)  # fmt: skip
            window = self.block(chunk, moved, side, side, dict(self._split(carried, loop.carried)))
            b.end_loop(loop, [v for c in carried for v in window[c]])
        if rest:
            start = max(self.y.width - side, 0)
            offset = start * self.conv.strides[1] * self.x.column_pitch
            last = place.moved(b, offset, start * self.y.column_pitch)
            self.block(chunk, last, side, min(side, self.y.width), {})

    def _constants(self, place: _Place) -> tuple[list[Value], list[Value]]:
        """Bias and multipliers of a run, loaded once before its columns."""
        b, nbytes = self.b, self.target.vector_nbytes
        return (
            [b.load(self.dot.kind, b.at(place.bias, g * nbytes), align=4) for g in range(4)],
            [
                b.load(self.epilogue.floats, b.at(place.scale, g * nbytes), align=4)
                for g in range(4)
            ],
        )

    def _carried(self, advance: int) -> list[int]:
        """Column taps whose interleaved column the next block reads again, kept in registers."""
        again = [t for t in self.column_taps if t - advance in self.column_taps]
        vectors = 4 * len(self.rows.quads) * len(self.column_taps) + 4 * self.rows.outputs
        return again if vectors <= 28 and self.target.registers == 32 else []

    def _split(self, taps: list[int], values: list[Value]) -> list[tuple[int, list[Value]]]:
        size = 4 * len(self.rows.quads)
        return [(t, values[i * size : (i + 1) * size]) for i, t in enumerate(taps)]

    def block(
        self, chunk: Chunk, place: _Place, side: int, valid: int, kept: dict[int, list[Value]]
    ) -> dict[int, list[Value]]:
        """One block of output pixels; returns the interleaved columns by tap.

        ``kept`` holds columns of the previous block by the tap they had there.
        """
        b, advance = self.b, side * self.conv.strides[1]
        sums = [list(place.bias_values) for _ in range(self.rows.outputs)]
        window: dict[int, list[Value]] = {}
        for number, tap in enumerate(self.column_taps):
            old = kept.get(tap + advance)
            window[tap] = old or self.interleaved(chunk, place.x, tap, side)
            self.accumulate(sums, window[tap], place.w, number)
        for row in range(self.rows.outputs):
            y = b.at(place.y, row * self.y.row_pitch)
            self.store(chunk, sums[row], place.scale_values, y, side, valid)
        return window

    def accumulate(
        self, sums: list[list[Value]], columns: list[Value], w: Value, number: int
    ) -> None:
        """Add one column tap to every output row."""
        b, pair = self.b, number * self.pairs
        operands = [self.dot.operand_of(b, v) for v in columns]
        for row, quads in enumerate(self.uses):
            for quad in quads:
                for g in range(4):
                    offset = (pair * 4 + g) * self.dot.weight_nbytes
                    weights = self.dot.weights(b, w, offset)
                    operand = operands[quad * 4 + g]
                    sums[row][g] = self.dot.accumulate(b, sums[row][g], operand, weights)
                pair += 1

    # -- vectors

    def interleaved(self, chunk: Chunk, x: Value, column: int, side: int) -> list[Value]:
        """Input column ``column`` (of each side-by-side pixel): for each quad four vectors, each
        lane the bytes of four rows of one channel."""
        result: list[Value] = []
        for rows in self.rows.quads:
            loaded = [self.row_bytes(chunk, x, r, column, side) for r in rows]
            loaded += [loaded[0]] * (ROWS - len(loaded))
            low, high = self._zip(loaded[0], loaded[1], 1), self._zip(loaded[2], loaded[3], 1)
            for a, c in zip(low, high, strict=True):
                result.extend(self._zip(a, c, 2))
        return result

    def row_bytes(self, chunk: Chunk, x: Value, row: int, column: int, side: int) -> Value:
        """One row's bytes of each side-by-side pixel, ``chunk.width`` bytes each."""
        b, width = self.b, chunk.width
        last = self.y.width - 1
        parts = []
        for pixel in range(side):
            source = column + min(pixel, last) * self.conv.strides[1]
            offset = row * self.x.row_pitch + source * self.x.column_pitch
            parts.append(b.load(vector(width, "i8"), b.at(x, offset)))
        while len(parts) > 1:
            kind, width = vector(width, "i8"), width * 2
            parts = [
                b.shuffle(kind, parts[i], parts[i + 1], range(width))
                for i in range(0, len(parts), 2)
            ]
        return parts[0]

    def _zip(self, a: Value, c: Value, size: int) -> tuple[Value, Value]:
        """Low and high interleavings of elements of ``size`` bytes within 128-bit lanes."""
        b, count = self.b, self.target.vector_nbytes // size
        kind = vector(count, f"i{8 * size}")
        if size > 1:
            a, c = (b.cast("bitcast", self.dot.bytes_kind, v, kind) for v in (a, c))
        per_lane = LANE_NBYTES // size
        halves = []
        for half in (0, per_lane // 2):
            mask = [
                lane + half + i + other
                for lane in range(0, count, per_lane)
                for i in range(per_lane // 2)
                for other in (0, count)
            ]
            mixed = b.shuffle(kind, a, c, mask)
            halves.append(
                b.cast("bitcast", kind, mixed, self.dot.bytes_kind) if size > 1 else mixed
            )
        return halves[0], halves[1]

    def store(
        self, chunk: Chunk, sums: list[Value], scale: list[Value], y: Value, side: int, valid: int
    ) -> None:
        """Finish four vectors of sums and store each pixel's bytes."""
        b = self.b
        values = [self.epilogue.scaled_sums(b, s, c) for s, c in zip(sums, scale, strict=True)]
        data = self.epilogue.byte_results(b, values)
        for pixel in range(valid):
            part = data
            if side > 1:
                lanes = range(pixel * chunk.width, (pixel + 1) * chunk.width)
                part = b.shuffle(self.dot.bytes_kind, data, "poison", lanes)
            target = b.at(y, pixel * self.y.column_pitch)
            store_partial(b, self.target, "i8", chunk.width, chunk.valid, part, target)


@dataclass(frozen=True)
class _Place:
    """Pointers to what a block reads and writes."""

    x: Value
    y: Value
    w: Value
    bias: Value
    scale: Value
    bias_values: list[Value] = field(default_factory=list)
    scale_values: list[Value] = field(default_factory=list)

    def with_constants(self, bias: list[Value], scale: list[Value]) -> _Place:
        return replace(self, bias_values=bias, scale_values=scale)

    def moved(self, b: Builder, x: Value | int, y: Value | int) -> _Place:
        x_moved, y_moved = b.opaque(b.at(self.x, x)), b.opaque(b.at(self.y, y))
        return replace(self, x=x_moved, y=y_moved)

    def at_column(self, b: Builder, index: Value, x_pitch: int, y_pitch: int) -> _Place:
        return self.moved(b, b.mul(index, x_pitch), b.mul(index, y_pitch))


def _by_lane(values: Array, lanes: list[Array]) -> Array:
    """Per-channel values in the order of the sums; zero where there is no channel."""
    extended = np.append(values, values.dtype.type(0))
    return np.concatenate([extended[c].reshape(-1) for c in lanes])

"""Convolutions of float32 images, dense and depthwise, and the padded rows that they read.

Convolutions are implicit matrix products.  A tile of ``PIXELS`` pixels by ``VECTORS`` vectors of
channels is summed in registers, over all rows of weights in their order: first those of the first
tap.  So a sum does not depend on the width of vectors.  Pixels are found by a table of offsets, so
that tiles go on from row to row and image to image; the last tile begins earlier and computes some
pixels twice.
"""

from __future__ import annotations

from collections.abc import Sequence

from quantglow.codegen.llvm.array_kernels.elements import (
    FLOAT_NBYTES,
    POINTER_NBYTES,
    Vectors,
    indices,
    smaller,
)
from quantglow.codegen.llvm.builder import Builder
from quantglow.codegen.llvm.isa.target import Target
from quantglow.codegen.llvm.kernels.vector.vectors import ELEMENTS, Piece, load, store
from quantglow.codegen.llvm.values import FLOAT, I8, I32, PTR, Value, vector
from quantglow.ir.types import DType

IMAGE_SIZES = 7
"""Sizes of ``pad_images``: lines of an image of the result; lines of an image of x; lines above
these; numbers before a line of x; numbers of a line of x; numbers of a line of the result; bytes
from one image of x to the next.  int64."""

PIXELS, FEW_PIXELS = 8, 4
"""Pixels of a tile, and where there are 16 registers or fewer."""
VECTORS = 2
MANY_REGISTERS = 32

WINDOW_SIZES = 6
"""Sizes of ``dense`` and ``depthwise``: taps; inputs of a tap; bytes of a row of weights, of a
pixel of the result; outputs; pixels.  int64."""


def pad_images(target: Target, dtype: DType) -> str:
    """Pointers: x, result float32, sizes, and a zero point, float32.  Items: lines of all images of
    the result.  ``dtype``: the type of x, f32 or of 8 bits; f32 has no zero point."""
    b = Builder(index=target.isa.index)
    vectors = Vectors(b, target)
    x, result, sizes, zero_points = b.kernel(4)
    height, own_height, top, left, count, width, pitch = indices(b, sizes, IMAGE_SIZES)
    nbytes = FLOAT_NBYTES if dtype is DType.F32 else 1
    zero_point = vectors.number(zero_points)

    with b.loop("%begin", "%end") as item:
        image = b.op("udiv", b.index, item, height)
        line = b.op("sub", b.index, b.op("sub", b.index, item, b.mul(image, height)), top)
        # Lines above wrap around to large numbers: one comparison does for both ends.
        is_there = b.compare("ult", b.index, line, own_height)
        stop = b.add(left, b.select(b.index, is_there, count, "0"))
        source = b.at(b.at(x, b.mul(image, pitch)), b.mul(b.mul(line, count), nbytes))
        row = b.at(result, b.mul(b.mul(item, width), FLOAT_NBYTES))

        def clear(index: Value, piece: Piece) -> None:
            store(b, FLOAT, piece, "zeroinitializer", b.at(row, b.mul(index, FLOAT_NBYTES)))

        def copy(index: Value, piece: Piece) -> None:
            place = b.at(source, b.mul(b.op("sub", b.index, index, left), nbytes))
            value = load(b, ELEMENTS[dtype], piece, place)
            if dtype is not DType.F32:
                value = _real(vectors, value, dtype is not DType.U8)
                value = b.op("fsub", vectors.kind, value, zero_point)
            store(b, FLOAT, piece, value, b.at(row, b.mul(index, FLOAT_NBYTES)))

        vectors.each("0", left, clear)
        vectors.each(left, stop, copy)
        vectors.each(stop, width, clear)
    return b.finish()


def _real(vectors: Vectors, value: Value, signed: bool) -> Value:
    """8-bit integers as float32."""
    b, whole = vectors.b, vector(vectors.lanes, I32)
    extend = "sext" if signed else "zext"
    longer = b.cast(extend, vector(vectors.lanes, I8), value, whole)
    return b.cast("sitofp", whole, longer, vectors.kind)


def tile_pixels(target: Target) -> int:
    """Pixels of a tile."""
    return PIXELS if target.registers >= MANY_REGISTERS else FEW_PIXELS


class _Tiles:
    """A kernel over tiles of pixels: its operands, the pixels of a tile, and the end of a sum."""

    def __init__(self, target: Target, operands: int) -> None:
        self.b = b = Builder(index=target.isa.index)
        self.vectors = Vectors(b, target)
        self.pixels = tile_pixels(target)
        self.pointers = b.kernel(operands)
        x, w, bias, bounds, result, offsets, taps, sizes = self.pointers[:8]
        self.x, self.w, self.bias, self.result = x, w, bias, result
        self.offsets, self.taps = offsets, taps
        geometry = indices(b, sizes, WINDOW_SIZES)
        self.tap_count, self.inputs, self.w_pitch, self.pitch = geometry[:4]
        self.outputs, self.end = geometry[4:]
        self.low = self.vectors.number(bounds)
        self.high = self.vectors.number(b.at(bounds, FLOAT_NBYTES))

    def rows(self, start: Value) -> list[Value]:
        """The pixels of the tile at ``start``, moved back to end with the last; the last pixel
        again where there are fewer."""
        b = self.b
        last = b.op("sub", b.index, self.end, "1")
        latest = b.op("sub", b.index, self.end, str(self.pixels))
        early = smaller(b, start, latest)
        early = b.select(b.index, b.compare("slt", b.index, early, "0"), "0", early)
        return [smaller(b, b.add(early, pixel), last) for pixel in range(self.pixels)]

    def addresses(self, base: Value, rows: Sequence[Value]) -> list[Value]:
        """The addresses at which windows of pixels begin."""
        b = self.b
        places = [b.load_index(b.at(self.offsets, b.mul(row, POINTER_NBYTES))) for row in rows]
        return [b.at(base, place) for place in places]

    def tap(self, index: Value) -> Value:
        """The offset of a tap from the start of a window."""
        return self.b.load_index(self.b.at(self.taps, self.b.mul(index, POINTER_NBYTES)))

    def finish_tile(self, total: Value, bias: Value, piece: Piece, pointer: Value) -> None:
        """Add the bias, apply the bounds, store."""
        total = self.b.op("fadd", self.vectors.kind, total, bias)
        store(self.b, FLOAT, piece, self.vectors.bounded(total, self.low, self.high), pointer)


def dense(target: Target) -> str:
    """Pointers: x, w, bias, bounds, result, offsets of pixels, offsets of taps, sizes, and room for
    the weights of a block.  Items: blocks of ``VECTORS`` vectors of outputs."""
    tiles = _Tiles(target, 9)
    b, vectors, (*_, panel) = tiles.b, tiles.vectors, tiles.pointers
    kind, nbytes = vectors.kind, VECTORS * vectors.nbytes
    depth = b.mul(tiles.tap_count, tiles.inputs)
    with b.loop("%begin", "%end") as block:
        channel = b.mul(block, VECTORS * vectors.lanes)
        left = b.op("sub", b.index, tiles.outputs, channel)
        at = b.mul(channel, FLOAT_NBYTES)
        parts = [
            vectors.within(b.op("sub", b.index, left, str(number * vectors.lanes)))
            for number in range(VECTORS)
        ]
        places = [number * vectors.nbytes for number in range(VECTORS)]
        with b.loop("0", depth) as row:
            source = b.at(b.at(tiles.w, at), b.mul(row, tiles.w_pitch))
            for part, place in zip(parts, places, strict=True):
                column = load(b, FLOAT, part, b.at(source, place))
                b.store(kind, column, b.at(b.at(panel, b.mul(row, nbytes)), place))
        source = b.at(tiles.bias, at)
        biases = [load(b, FLOAT, p, b.at(source, o)) for p, o in zip(parts, places, strict=True)]
        with b.loop("0", tiles.end, tiles.pixels) as start:
            rows = tiles.rows(start)
            sums = _dense_sums(tiles, tiles.addresses(tiles.x, rows), panel, places)
            for pixel, row in enumerate(rows):
                target_row = b.at(b.at(tiles.result, at), b.mul(row, tiles.pitch))
                for number, place in enumerate(places):
                    total = sums[pixel * VECTORS + number]
                    tiles.finish_tile(total, biases[number], parts[number], b.at(target_row, place))
    return b.finish()


def _dense_sums(
    tiles: _Tiles, windows: Sequence[Value], panel: Value, places: Sequence[int]
) -> list[Value]:
    """The sums of a tile, pixel by pixel."""
    b, vectors = tiles.b, tiles.vectors
    kind, nbytes = vectors.kind, VECTORS * vectors.nbytes
    zeros = [(kind, "zeroinitializer")] * (len(windows) * VECTORS)
    taps = b.begin_while(tiles.tap_count, [*zeros, (PTR, panel)])
    tap = tiles.tap(taps.index)
    values = [b.at(window, tap) for window in windows]
    *sums, weights = taps.carried
    inputs = b.begin_while(tiles.inputs, [(kind, total) for total in sums])
    row = b.at(weights, b.mul(inputs.index, nbytes))
    w = [b.load(kind, b.at(row, place)) for place in places]
    place = b.mul(inputs.index, FLOAT_NBYTES)
    totals = []
    for pixel, value in enumerate(values):
        x = vectors.number(b.at(value, place))
        for number in range(VECTORS):
            total = inputs.carried[pixel * VECTORS + number]
            totals.append(vectors.multiply_add(x, w[number], total))
    totals = b.end_while(inputs, totals)
    following = b.at(weights, b.mul(tiles.inputs, nbytes))
    return b.end_while(taps, [*totals, following])[:-1]


def depthwise(target: Target) -> str:
    """``dense`` where each channel is a group, without room.  Items: tiles of pixels, of which all
    channels are computed one after the other, as they lie in memory."""
    tiles = _Tiles(target, 8)
    b, vectors = tiles.b, tiles.vectors
    with b.loop("%begin", "%end") as tile:
        rows = tiles.rows(b.mul(tile, tiles.pixels))
        windows = tiles.addresses(tiles.x, rows)
        results = [b.at(tiles.result, b.mul(row, tiles.pitch)) for row in rows]

        def compute(channel: Value, part: Piece) -> None:
            at = b.mul(channel, FLOAT_NBYTES)
            zeros = [(vectors.kind, "zeroinitializer")] * tiles.pixels
            channels = [b.at(window, at) for window in windows]
            taps = b.begin_while(tiles.tap_count, zeros)
            w = load(b, FLOAT, part, b.at(b.at(tiles.w, at), b.mul(taps.index, tiles.w_pitch)))
            tap = tiles.tap(taps.index)
            sums = [
                vectors.multiply_add(load(b, FLOAT, part, b.at(window, tap)), w, total)
                for window, total in zip(channels, taps.carried, strict=True)
            ]
            sums = b.end_while(taps, sums)
            bias = load(b, FLOAT, part, b.at(tiles.bias, at))
            for result, total in zip(results, sums, strict=True):
                tiles.finish_tile(total, bias, part, b.at(result, at))

        vectors.each("0", tiles.outputs, compute)
    return b.finish()

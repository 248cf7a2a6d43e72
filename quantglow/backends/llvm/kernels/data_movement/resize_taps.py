"""Taps of a Resize of free sizes: source rows and weights, computed as ``Resize.taps`` does it."""

from __future__ import annotations

from dataclasses import dataclass

from quantglow.backends.llvm.builder import Builder, Value, f32, splat, vector
from quantglow.backends.llvm.isa.target import Target
from quantglow.backends.llvm.kernels.vector import vectors
from quantglow.ops import Resize
from quantglow.symbolic.size import is_free

COORDINATES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
"""The transformations that are computed; others have tables, which fix the sizes."""

BLOCK = 256
"""Columns whose taps are computed before they are used: a multiple of all vectors."""


@dataclass
class FreeTaps:
    """The taps along H (0) or W (1), ``pitch`` bytes apart."""

    b: Builder
    target: Target
    op: Resize
    axis: int
    pitch: int

    @staticmethod
    def applies(op: Resize, axis: int, pitch: int) -> bool:
        """Whether the taps depend on free sizes."""
        sizes = (op.x.type.shape[axis + 1], op.sizes[axis], pitch)
        return any(map(is_free, sizes)) and op.coordinates in COORDINATES

    def offsets(self, index: Value) -> list[Value]:
        """Bytes to the sources of a result; one for the nearest neighbour."""
        b = self.b
        sources = self._sources(1, b.as_int(index))
        return [b.mul(b.as_index("i32", source), self.pitch) for source in sources]

    def weights(self, index: Value) -> list[Value]:
        """The float32 weights of two sources, none of a single one."""
        return self._weights(1, self.b.as_int(index))

    def _sources(self, lanes: int, index: Value) -> list[Value]:
        """int32 rows for lanes of results."""
        if self.op.mode == "nearest":
            return [self._nearest(lanes, index)]
        return list(self._pair(lanes, self._limited(lanes, self._coordinates(lanes, index))))

    def _weights(self, lanes: int, index: Value) -> list[Value]:
        if self.op.mode == "nearest":
            return []
        b, kind = self.b, vector(lanes, "float")
        source = self._limited(lanes, self._coordinates(lanes, index))
        first, second = self._pair(lanes, source)
        fraction = b.op("fsub", kind, source, vectors.int_to_float(b, lanes, first))
        is_same = b.compare("eq", vector(lanes, "i32"), first, second)
        weight = b.select(kind, is_same, splat(kind, f32(0.5)), fraction)
        return [b.op("fsub", kind, splat(kind, f32(1.0)), weight), weight]

    def _size(self, lanes: int, value: int) -> Value:
        """A size in int32 lanes."""
        return self.b.broadcast(lanes, "i32", self.b.as_int(str(value)))

    def _last(self, lanes: int) -> Value:
        return self._size(lanes, self.op.x.type.shape[self.axis + 1] - 1)

    def _pair(self, lanes: int, source: Value) -> tuple[Value, Value]:
        """The rows at and after coordinates that are not negative."""
        first = self._row(lanes, self._whole(lanes, source))
        return first, self._row(lanes, vectors.add_constant(self.b, lanes, first, 1))

    def _whole(self, lanes: int, source: Value) -> Value:
        return self.b.cast("fptosi", vector(lanes, "float"), source, vector(lanes, "i32"))

    def _row(self, lanes: int, whole: Value) -> Value:
        """Integers up to the last row: float32 rounds its number up if it is large."""
        kind = vector(lanes, "i32")
        pair = (kind, whole), (kind, self._last(lanes))
        return self.b.call(f"llvm.smin.{vectors.suffix(lanes, 'i32')}", kind, *pair)

    def _nearest(self, lanes: int, index: Value) -> Value:
        """The rows nearest to coordinates; their limits are integers, so they are limited first."""
        b, rounding = self.b, self.op.rounding or "round_prefer_floor"
        kind, ints = vector(lanes, "float"), vector(lanes, "i32")
        source = self._coordinates(lanes, index)
        if rounding.startswith("round"):
            half = f32(-0.5 if rounding == "round_prefer_floor" else 0.5)
            source = b.op("fadd", kind, source, splat(kind, half))
        source = self._limited(lanes, source)
        whole = self._whole(lanes, source)
        if rounding in ("floor", "round_prefer_ceil"):
            return self._row(lanes, whole)
        above = b.compare("ogt", kind, source, vectors.int_to_float(b, lanes, whole))
        after = b.op("add", ints, whole, b.cast("zext", vector(lanes, "i1"), above, ints))
        return self._row(lanes, after)

    def _limited(self, lanes: int, source: Value) -> Value:
        """Coordinates moved into the source."""
        b, kind = self.b, vector(lanes, "float")
        source = vectors.max_constant(b, kind, source, 0.0)
        high = vectors.int_to_float(b, lanes, self._last(lanes))
        return b.select(kind, b.compare("olt", kind, source, high), source, high)

    def _coordinates(self, lanes: int, index: Value) -> Value:
        """The float32 coordinates of results in the source."""
        b, kind, zero = self.b, vector(lanes, "float"), f32(0.0)
        number, resized = vectors.int_to_float(b, lanes, index), self.op.sizes[self.axis]
        if self.op.coordinates == "align_corners":
            steps = vectors.int_to_float(b, lanes, self._size(lanes, resized - 1))
            span = b.op("fmul", kind, number, vectors.int_to_float(b, lanes, self._last(lanes)))
            # A single result has coordinate 0.
            several = b.compare("ogt", kind, steps, splat(kind, zero))
            return b.op("fdiv", kind, span, b.select(kind, several, steps, splat(kind, f32(1.0))))
        scale, half = splat(kind, f32(self.op.scales[self.axis])), splat(kind, f32(0.5))
        if self.op.coordinates == "asymmetric":
            return b.op("fdiv", kind, number, scale)
        centre = b.op("fadd", kind, number, half)
        source = b.op("fsub", kind, b.op("fdiv", kind, centre, scale), half)
        if self.op.coordinates == "half_pixel":
            return source
        single = b.compare(
            "eq", vector(lanes, "i32"), self._size(lanes, resized), self._size(lanes, 1)
        )
        return b.select(kind, single, splat(kind, zero), source)


@dataclass
class FreeColumns(FreeTaps):
    """Taps of columns, computed in vectors for a block of columns."""

    def __post_init__(self) -> None:
        self._begin = ""
        self._tables: list[tuple[str, Value]] = []

    def fill(self, begin: Value, end: Value) -> None:
        """Compute the taps of at most ``BLOCK`` columns."""
        b, lanes = self.b, self.target.f32_lanes
        kind = vector(lanes, "i32")
        self._begin, self._tables = begin, []
        count = 1 if self.op.mode == "nearest" else 4
        rooms = [b.room(f"[{BLOCK} x i32]") for _ in range(count)]
        steps = f"<{', '.join(f'i32 {lane}' for lane in range(lanes))}>"
        with b.loop(begin, end, lanes) as column:
            first = b.broadcast(lanes, "i32", b.as_int(column))
            index = b.op("add", kind, first, steps)
            found = [(kind, value) for value in self._sources(lanes, index)]
            found += [(vector(lanes, "float"), value) for value in self._weights(lanes, index)]
            at = b.mul(b.op("sub", b.index, column, begin), 4)
            for room, (lane_kind, value) in zip(rooms, found, strict=True):
                b.store(lane_kind, value, b.at(room, at), align=4)
        elements = ["i32"] * (1 if count == 1 else 2) + ["float"] * (count // 2)
        self._tables = list(zip(elements, rooms, strict=True))

    def offsets(self, index: Value) -> list[Value]:
        b = self.b
        wide = [b.as_index("i32", source) for source in self._loaded("i32", index)]
        return [b.mul(source, self.pitch) for source in wide]

    def weights(self, index: Value) -> list[Value]:
        return self._loaded("float", index)

    def _loaded(self, element: str, index: Value) -> list[Value]:
        b = self.b
        at = b.mul(b.op("sub", b.index, index, self._begin), 4)
        return [b.load(e, b.at(room, at), align=4) for e, room in self._tables if e == element]

"""Depthwise convolution of signed bytes by products of whole windows.

For processors that add all products of two vectors of bytes to one sum.  Four bytes of a channel
that are neighbours along one axis of the image become a word; the words of some lines are a window
of one channel, gathered to a vector.  A word that is longer than a line of taps serves several
results: their weights are those of the first one, moved.

A tile has neighbouring results along the axis, as many as there are lanes, and the channels of a
vector of bytes, one after the other.  The last tile of a line is moved back to end where it does:
it computes some results again, to the same values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from quantglow.backends.llvm.builder import Builder, Value, splat, vector
from quantglow.backends.llvm.isa.dot import STEP_NBYTES, WindowWords
from quantglow.backends.llvm.isa.target import Target
from quantglow.backends.llvm.kernel import KernelCall
from quantglow.backends.llvm.kernels.contraction.epilogue import Epilogue
from quantglow.backends.llvm.kernels.contraction.geometry import Image
from quantglow.backends.llvm.kernels.contraction.weight_sums import channel_sums
from quantglow.backends.llvm.kernels.depthwise.plan import is_depthwise
from quantglow.graph.node import Constant
from quantglow.instr.program import Compute
from quantglow.lazy import cached_property
from quantglow.ops import Conv
from quantglow.symbolic.size import is_free
from quantglow.types import Array, DType

FACTOR_NBYTES = 4
"""Bytes of the bias of a channel, and of its multiplier."""
NEIGHBOURS = 2
"""Patches of a tile that share an address."""


@dataclass(frozen=True)
class Axis:
    """An axis of a depthwise convolution: number of results, bytes between neighbours of its input
    and of its results, and the taps of a window."""

    results: int
    x_pitch: int
    y_pitch: int
    taps: int
    stride: int
    dilation: int

    @property
    def shared(self) -> int:
        """Results that four neighbours serve."""
        if self.dilation > 1:
            return 1
        return (STEP_NBYTES - self.taps) // self.stride + 1

    def places(self, results: int) -> list[int]:
        """Distances of the bytes of a word that serves so many results; the last one that is needed
        stands for those behind it."""
        last = (self.taps - 1) * self.dilation + (results - 1) * self.stride
        return [min(i * self.dilation, last) for i in range(STEP_NBYTES)]


@dataclass
class WindowDepthwise:
    """Generator of one depthwise kernel."""

    step: Compute
    conv: Conv
    target: Target
    b: Builder = field(init=False)

    def __post_init__(self) -> None:
        self.b = Builder(index=self.target.isa.index)
        self.x, self.y = Image.of(self.step.inputs[0]), Image.of(self.step.output)
        self.epilogue = Epilogue(self.conv, self.target)

    @property
    def applies(self) -> bool:
        """Whether the target has such products, windows fit vectors, and all sizes are known."""
        if self.target.isa.window_words is None or not is_depthwise(self.conv):
            return False
        sizes = (*self.x.pitches, *self.y.pitches, self.y.height, self.y.width)
        bytes_only = {self.conv.x.type.dtype, self.conv.type.dtype} == {DType.I8}
        fits = max(self.conv.w.type.shape[:2]) <= STEP_NBYTES
        return bytes_only and fits and not any(map(is_free, sizes))

    @property
    def words(self) -> WindowWords:
        assert self.target.isa.window_words is not None
        return self.target.isa.window_words

    # -- the plan

    @cached_property
    def axes(self) -> tuple[Axis, Axis]:
        """The axis of tiles and the other one."""
        columns, rows = self._image_axes
        return (rows, columns) if self.is_turned else (columns, rows)

    @cached_property
    def is_turned(self) -> bool:
        """Whether tiles lie along columns of the image, because these need fewer."""
        columns, rows = self._image_axes
        return self._tiles(rows) * columns.results < self._tiles(columns) * rows.results

    @property
    def _image_axes(self) -> tuple[Axis, Axis]:
        """From left to right, and from top to bottom."""
        kh, kw = self.conv.w.type.shape[:2]
        (down, right), (low, wide) = self.conv.strides, self.conv.dilations
        x, y = self.x, self.y
        columns = Axis(y.width, x.column_pitch, y.column_pitch, kw, right, wide)
        return columns, Axis(y.height, x.row_pitch, y.row_pitch, kh, down, low)

    def _tiles(self, axis: Axis) -> int:
        """Tiles of a line."""
        return -(-axis.results // self.lanes)

    @property
    def lanes(self) -> int:
        return self.target.f32_lanes

    @property
    def block(self) -> int:
        """Channels of a tile."""
        return self.target.vector_nbytes

    @property
    def results(self) -> int:
        """Results of a tile for each channel."""
        return min(self.lanes, self.axes[0].results)

    @property
    def patches(self) -> list[int]:
        """For each patch of a tile the results that it serves."""
        shared, results = self.axes[0].shared, self.results
        return [min(shared, results - first) for first in range(0, results, shared)]

    @property
    def patch_nbytes(self) -> int:
        """Bytes of the words of all channels of a tile."""
        return self.block * STEP_NBYTES

    @property
    def line_nbytes(self) -> int:
        return len(self.patches) * self.patch_nbytes

    # -- the call

    def call(self) -> KernelCall:
        self.epilogue.check()
        kh, kw = self.conv.w.type.shape[:2]
        results = self.y.count * self.y.height * self.y.width * self.y.channels
        return KernelCall(
            code=self.text,
            pointers=(self.step.inputs[0], self.step.output, self.constants()),
            items=self.y.count * self.axes[1].results,
            work=float(results * kh * kw),
            label="depthwise by windows",
            facts=f"windows {self.epilogue.facts}",
        )

    @property
    def channel_nbytes(self) -> int:
        """Bytes of the constants of a channel."""
        return self.target.vector_nbytes + 2 * FACTOR_NBYTES

    def constants(self) -> Array:
        """For each channel: the words of its weights, its bias with the zero point of the input,
        and its multiplier."""
        w, b = self.conv.w, self.conv.b
        assert isinstance(w, Constant) and isinstance(b, Constant)
        lines = np.moveaxis(w.value[:, :, 0], -1, 0)
        if self.is_turned:
            lines = lines.swapaxes(1, 2)
        missing = [(0, 0), *((0, STEP_NBYTES - size) for size in lines.shape[1:])]
        weights = np.pad(lines.astype(np.int8), missing).reshape(len(lines), -1)
        zero_point = self.conv.x.type.params.zero_point
        bias = b.value.astype(np.int64) - zero_point * channel_sums(w.value)
        factors = (bias.astype(np.int32), self.epilogue.multipliers())
        columns = (f.reshape(-1, 1).view(np.uint8) for f in factors)
        return np.concatenate([weights.view(np.uint8), *columns], axis=1).reshape(-1)

    # -- loops

    def text(self) -> str:
        b, across = self.b, self.axes[1]
        x, y, constants = b.kernel(3)
        nbytes = across.taps * self.line_nbytes
        self.room = b.room(f"[{nbytes} x i8], align {STEP_NBYTES}")
        full, rest = divmod(self.y.channels, self.block)
        with b.loop("%begin", "%end") as item:
            image, line = b.divide(item, across.results)
            x_line = b.add(b.mul(image, self.x.batch_pitch), b.mul(line, self._step(across)))
            y_line = b.add(b.mul(image, self.y.batch_pitch), b.mul(line, across.y_pitch))
            places = [b.at(x, x_line), b.at(y, y_line), constants]
            if full:
                loop = b.begin_loop(full, [("ptr", place) for place in places])
                self.channels_of_line(self.block, loop.carried)
                x, y, constants = loop.carried
                behind = [b.at(pointer, self.block) for pointer in (x, y)]
                constants = b.at(constants, self.block * self.channel_nbytes)
                places = b.end_loop(loop, [*behind, constants])
            if rest:
                self.channels_of_line(rest, places)
        return b.finish()

    def _step(self, axis: Axis) -> int:
        """Bytes between the windows of neighbouring results."""
        return axis.stride * axis.x_pitch

    def channels_of_line(self, channels: int, places: Sequence[Value]) -> None:
        """All tiles of a line for some channels."""
        b, (x, y, constants), along = self.b, places, self.axes[0]
        with b.loop(0, self._tiles(along)) as tile:
            first = b.mul(tile, self.results)
            if along.results % self.results:
                last = ((b.index, first), (b.index, str(along.results - self.results)))
                first = b.call(f"llvm.smin.{b.index}", b.index, *last)
            self.lay_out(b.at(x, b.mul(first, self._step(along))))
            self.channels(channels, constants, b.at(y, b.mul(first, along.y_pitch)))

    def lay_out(self, x: Value) -> None:
        """Store the words of all patches, line by line, the channels of each side by side."""
        b, kind = self.b, vector(self.block, "i8")
        along, across = self.axes
        for line in range(across.taps):
            start, at = x, 0
            for index, results in enumerate(self.patches):
                loaded = []
                for place in along.places(results):
                    source = index * along.shared * along.stride + place
                    start, at = self._walked(start, source - at, along.x_pitch), source
                    loaded.append(b.load(kind, start))
                patch = line * self.line_nbytes + index * self.patch_nbytes
                self.words.store_in_turn(b, loaded, b.at(self.room, patch))
            x = b.at(x, across.dilation * across.x_pitch)

    def _walked(self, pointer: Value, steps: int, pitch: int) -> Value:
        """An address some pixels farther, in steps of one: layers share code, which takes the
        distance as an operand."""
        for _ in range(abs(steps)):
            pointer = self.b.at(pointer, pitch if steps > 0 else -pitch)
        return pointer

    # -- channels of a tile

    def channels(self, count: int, constants: Value, y: Value) -> None:
        """All results of a tile, channel by channel."""
        b = self.b
        kind = vector(self.lanes, "i32")
        order = f"<{', '.join(f'i32 {lane}' for lane in range(self.lanes))}>"
        offsets = b.op("mul", kind, order, splat(kind, str(self.axes[0].y_pitch)))
        carried = [("ptr", value) for value in (self.room, constants, y)]
        loop = b.begin_loop(count, carried)
        room, constants, y = loop.carried
        self.channel(room, constants, y, offsets)
        behind = (b.at(room, STEP_NBYTES), b.at(constants, self.channel_nbytes), b.at(y, 1))
        b.end_loop(loop, behind)

    def channel(self, room: Value, constants: Value, y: Value, offsets: Value) -> None:
        """The results of a tile for one channel."""
        b, results = self.b, self.epilogue.results
        sums = self.sums(room, b.load(vector(self.lanes, "i32"), constants, align=4))
        at = b.at(constants, self.target.vector_nbytes)
        bias = b.broadcast(self.lanes, "i32", b.load("i32", at, align=4))
        multiplier = b.load("float", b.at(at, FACTOR_NBYTES), align=4)
        scale = b.broadcast(self.lanes, "float", multiplier)
        values = self.epilogue.values(b, b.op("add", results.ints, sums, bias), scale, None)
        steps = results.steps(b, values)
        if self.results == self.lanes:
            self.words.scatter_bytes(b, steps, y, offsets)
            return
        for lane in range(self.results):
            step = b.emit(f"extractelement {results.ints} {steps}, i32 {lane}")
            place = b.at(y, lane * self.axes[0].y_pitch)
            b.store("i8", b.cast("trunc", "i32", step, "i8"), place)

    def sums(self, room: Value, weights: Value) -> Value:
        """The products of all windows, a lane for each result; poison where there is none."""
        b, kind, lane, found = self.b, vector(self.lanes, "i32"), 0, "poison"
        moved = self.moved_weights(weights)
        for index, results in enumerate(self.patches):
            window = self.window(room, index)
            for w in moved[:results]:
                total = self.target.isa.row_product(b, "0", window, w)
                found = b.emit(f"insertelement {kind} {found}, i32 {total}, i32 {lane}")
                lane += 1
        return found

    def moved_weights(self, weights: Value) -> list[Value]:
        """For each result of a patch the bytes of its weights."""
        b, kind, whole = self.b, vector(self.lanes, "i32"), vector(self.block, "i8")
        found = []
        for index in range(self.patches[0]):
            bits = 8 * index * self.axes[0].stride
            moved = b.op("shl", kind, weights, splat(kind, str(bits))) if bits else weights
            found.append(b.cast("bitcast", kind, moved, whole))
        return found

    def window(self, room: Value, index: int) -> Value:
        """The words of a patch for one channel; the first one stands for missing lines."""
        b, lines, kind = self.b, self.axes[1].taps, vector(self.lanes, "i32")
        pair, which = divmod(index, NEIGHBOURS)
        room = b.at(room, pair * NEIGHBOURS * self.patch_nbytes)
        offsets = (
            (line if line < lines else 0) * self.line_nbytes + which * self.patch_nbytes
            for line in range(self.lanes)
        )
        places = f"<{', '.join(f'i32 {offset}' for offset in offsets)}>"
        words = self.words.gather_words(b, room, places)
        return b.cast("bitcast", kind, words, vector(self.block, "i8"))

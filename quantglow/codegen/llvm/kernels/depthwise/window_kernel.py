"""Depthwise convolution of signed bytes by products of whole windows.

For processors that add all products of two vectors of bytes to one sum.  Four bytes of a channel
that are neighbors along one axis of the image become a word; the words of all lines of taps are a
window of one channel, gathered to vectors.  A word that is longer than a line of taps serves
several results: their weights are those of the first one, moved.

A tile has neighboring results along the axis, as many as there are lanes, and the channels of a
vector of bytes, one after the other.  The last tile of a line is moved back to end where it does:
it computes some results again, to the same values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from quantglow.codegen.llvm.builder import Builder
from quantglow.codegen.llvm.isa.dot import STEP_NBYTES, WindowWords
from quantglow.codegen.llvm.isa.target import Target
from quantglow.codegen.llvm.kernel import KernelCall
from quantglow.codegen.llvm.kernels.contraction.epilogue import Epilogue
from quantglow.codegen.llvm.kernels.contraction.geometry import ImageLayout
from quantglow.codegen.llvm.kernels.contraction.results import channel_sums
from quantglow.codegen.llvm.kernels.depthwise.plan import is_depthwise
from quantglow.codegen.llvm.values import FLOAT, I8, I32, PTR, Value, integer, poison, splat, vector
from quantglow.ir.graph.node import Constant
from quantglow.ir.ops import Conv
from quantglow.ir.program.program import Compute
from quantglow.ir.symbolic.size import fixed, is_free, likely
from quantglow.ir.types import DType
from quantglow.support.arrays import Array
from quantglow.support.classes import cached_property

FACTOR_NBYTES = 4
"""Bytes of the bias of a channel, and of its multiplier."""
NEIGHBORS = 2
"""Patches of a tile that share an address."""
UNROLLED_LINES = 3
"""Larger windows have a loop over their lines: code counts."""
MOST_NBYTES = 2560
"""Maximum number of bytes on the stack: those of 5 x 5 windows."""


@dataclass(frozen=True)
class WindowAxis:
    """An axis of a depthwise convolution: number of results, bytes between neighbors of its input
    and of its results, and the taps of a window."""

    results: int
    x_pitch: int
    y_pitch: int
    taps: int
    stride: int
    dilation: int

    @property
    def words(self) -> int:
        """Words of a line of taps."""
        return -(-self.taps // STEP_NBYTES)

    @property
    def shared(self) -> int:
        """Results that one word serves."""
        if self.dilation > 1 or self.words > 1:
            return 1
        return (STEP_NBYTES - self.taps) // self.stride + 1

    def places(self, results: int, word: int) -> list[int]:
        """Distances of the bytes of a word of a line that serves so many results; the last one that
        is needed stands for those behind it."""
        last = (self.taps - 1) * self.dilation + (results - 1) * self.stride
        first = word * STEP_NBYTES
        return [min((first + i) * self.dilation, last) for i in range(STEP_NBYTES)]


@dataclass
class WindowDepthwise:
    """Generator of one depthwise kernel."""

    step: Compute
    conv: Conv
    target: Target
    b: Builder = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.b = Builder(index=self.target.isa.index)
        self.x, self.y = ImageLayout.of(self.step.inputs[0]), ImageLayout.of(self.step.output)
        self.epilogue = Epilogue(self.conv, self.target)

    @property
    def applies(self) -> bool:
        """Whether the target has such products, windows are small, and all sizes are known."""
        if self.target.isa.window_words is None or not is_depthwise(self.conv):
            return False
        if self.conv.residual is not None:
            return False
        sizes = (*self.x.pitches, *self.y.pitches, self.y.height, self.y.width)
        if any(map(is_free, sizes)) or self.room_nbytes > MOST_NBYTES:
            return False
        return {self.conv.x.type.dtype, self.conv.type.dtype} == {DType.I8}

    @property
    def words(self) -> WindowWords:
        assert self.target.isa.window_words is not None
        return self.target.isa.window_words

    # -- the plan

    @cached_property
    def axes(self) -> tuple[WindowAxis, WindowAxis]:
        """The axis of tiles and the other one."""
        columns, rows = self._image_axes
        return (rows, columns) if self.is_turned else (columns, rows)

    @cached_property
    def is_turned(self) -> bool:
        """Whether tiles lie along columns of the image, because these need fewer."""
        columns, rows = self._image_axes
        return self._tiles(rows) * columns.results < self._tiles(columns) * rows.results

    @property
    def _image_axes(self) -> tuple[WindowAxis, WindowAxis]:
        """From left to right, and from top to bottom: all sizes of them are known."""
        kh, kw = self.conv.w.type.fixed_shape[:2]
        (down, right), (low, wide) = self.conv.strides, self.conv.dilations
        width, height = fixed((self.y.width, self.y.height))
        _, x_row, x_column = fixed(self.x.pitches)
        _, y_row, y_column = fixed(self.y.pitches)
        columns = WindowAxis(width, x_column, y_column, kw, right, wide)
        return columns, WindowAxis(height, x_row, y_row, kh, down, low)

    def _tiles(self, axis: WindowAxis) -> int:
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
    def word_nbytes(self) -> int:
        """Bytes of one word of a line for all patches."""
        return len(self.patches) * self.patch_nbytes

    @property
    def room_nbytes(self) -> int:
        """Bytes of all words of a tile."""
        return self.axes[1].taps * self.axes[0].words * self.word_nbytes

    @property
    def vectors(self) -> int:
        """Vectors of a window."""
        return -(-self.axes[1].taps * self.axes[0].words // self.lanes)

    # -- the call

    def call(self) -> KernelCall:
        self.epilogue.check()
        kh, kw = self.conv.w.type.fixed_shape[:2]
        results = self.y.count * self.y.height * self.y.width * self.y.channels
        return KernelCall(
            code=self.text,
            pointers=(self.step.inputs[0], self.step.output, self.constants()),
            items=self.y.count * self.axes[1].results,
            work=float(likely(results) * kh * kw),
            label="depthwise by windows",
            facts=f"windows {self.epilogue.facts}",
        )

    @property
    def channel_nbytes(self) -> int:
        """Bytes of the constants of a channel."""
        return self.vectors * self.target.vector_nbytes + 2 * FACTOR_NBYTES

    def constants(self) -> Array:
        """For each channel: the vectors of its weights, its bias with the zero point of the input,
        and its multiplier."""
        w, b = self.conv.w, self.conv.b
        assert isinstance(w, Constant) and isinstance(b, Constant)
        lines = np.moveaxis(w.value[:, :, 0], -1, 0)
        if self.is_turned:
            lines = lines.swapaxes(1, 2)
        missing = (0, 0), (0, 0), (0, -lines.shape[2] % STEP_NBYTES)
        words = np.pad(lines.astype(np.int8), missing).reshape(len(lines), -1)
        weights = np.pad(words, ((0, 0), (0, -words.shape[1] % self.target.vector_nbytes)))
        zero_point = self.conv.x.type.params.zero_point
        bias = b.value.astype(np.int64) - zero_point * channel_sums(w.value)
        factors = (bias.astype(np.int32), self.epilogue.multipliers())
        columns = (f.reshape(-1, 1).view(np.uint8) for f in factors)
        return np.concatenate([weights.view(np.uint8), *columns], axis=1).reshape(-1)

    # -- loops

    def text(self) -> str:
        b, across = self.b, self.axes[1]
        x, y, constants = b.kernel(3)
        self.room = b.room(f"[{self.room_nbytes} x i8], align {STEP_NBYTES}")
        full, remainder = divmod(self.y.channels, self.block)
        with b.loop("%begin", "%end") as item:
            image, line = b.divide(item, across.results)
            x_line = b.add(b.mul(image, self.x.batch_pitch), b.mul(line, self._step(across)))
            y_line = b.add(b.mul(image, self.y.batch_pitch), b.mul(line, across.y_pitch))
            places = [b.at(x, x_line), b.at(y, y_line), constants]
            if full:
                loop = b.begin_loop(full, [(PTR, place) for place in places])
                self.channels_of_line(self.block, loop.carried)
                x, y, constants = loop.carried
                behind = [b.at(pointer, self.block) for pointer in (x, y)]
                constants = b.at(constants, self.block * self.channel_nbytes)
                places = b.end_loop(loop, [*behind, constants])
            if remainder:
                self.channels_of_line(remainder, places)
        return b.finish()

    def _step(self, axis: WindowAxis) -> int:
        """Bytes between the windows of neighboring results."""
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
        lines, places = self.axes[1].taps, [x, self.room]
        if lines <= UNROLLED_LINES:
            for _ in range(lines):
                places = self._lay_out_line(*places)
            return
        loop = self.b.begin_loop(lines, [(PTR, place) for place in places])
        self.b.end_loop(loop, self._lay_out_line(*loop.carried))

    def _lay_out_line(self, x: Value, room: Value) -> list[Value]:
        """Store the words of one line; the places of the next one."""
        b, (along, across) = self.b, self.axes
        for word in range(along.words):
            self._lay_out_word(x, word, b.at(room, word * self.word_nbytes))
        behind = b.at(room, along.words * self.word_nbytes)
        return [b.at(x, across.dilation * across.x_pitch), behind]

    def _lay_out_word(self, x: Value, word: int, room: Value) -> None:
        """Store one word of a line for all patches."""
        b, kind, along = self.b, vector(self.block, I8), self.axes[0]
        at = 0
        for index, results in enumerate(self.patches):
            loaded = []
            for place in along.places(results, word):
                source = index * along.shared * along.stride + place
                x, at = self._walked(x, source - at, along.x_pitch), source
                loaded.append(b.load(kind, x))
            self.words.store_in_turn(b, loaded, b.at(room, index * self.patch_nbytes))

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
        kind = vector(self.lanes, I32)
        order = f"<{', '.join(f'i32 {lane}' for lane in range(self.lanes))}>"
        offsets = b.op("mul", kind, order, splat(kind, str(self.axes[0].y_pitch)))
        carried = [(PTR, value) for value in (self.room, constants, y)]
        loop = b.begin_loop(count, carried)
        room, constants, y = loop.carried
        self.channel(room, constants, y, offsets)
        behind = (b.at(room, STEP_NBYTES), b.at(constants, self.channel_nbytes), b.at(y, 1))
        b.end_loop(loop, behind)

    def channel(self, room: Value, constants: Value, y: Value, offsets: Value) -> None:
        """The results of a tile for one channel."""
        b, results = self.b, self.epilogue.results
        sums = self.sums(room, constants)
        at = b.at(constants, self.vectors * self.target.vector_nbytes)
        bias = b.broadcast(self.lanes, I32, b.load(I32, at, align=4))
        multiplier = b.load(FLOAT, b.at(at, FACTOR_NBYTES), align=4)
        scale = b.broadcast(self.lanes, FLOAT, multiplier)
        values = self.epilogue.values(b, b.op("add", results.ints, sums, bias), scale, None)
        steps = results.steps(b, values)
        if self.results == self.lanes:
            self.words.scatter_bytes(b, steps, y, offsets)
            return
        for lane in range(self.results):
            step = b.extract(steps, lane)
            place = b.at(y, lane * self.axes[0].y_pitch)
            b.store(I8, b.cast("trunc", I32, step, I8), place)

    def sums(self, room: Value, constants: Value) -> Value:
        """The products of all windows, a lane for each result; poison where there is none."""
        b, kind = self.b, vector(self.lanes, I32)
        totals = [integer(0)] * self.results
        for part in range(self.vectors):
            at = b.at(constants, part * self.target.vector_nbytes)
            moved = self.moved_weights(b.load(kind, at, align=4))
            lane = 0
            for index, results in enumerate(self.patches):
                window = self.window(room, index, part)
                for w in moved[:results]:
                    totals[lane] = self.target.isa.row_product(b, totals[lane], window, w)
                    lane += 1
        sums = poison(kind)
        for lane, total in enumerate(totals):
            sums = b.insert(sums, total, lane)
        return sums

    def moved_weights(self, weights: Value) -> list[Value]:
        """For each result of a patch the bytes of a vector of its weights."""
        b, kind, whole = self.b, vector(self.lanes, I32), vector(self.block, I8)
        shifted = []
        for index in range(self.patches[0]):
            bits = 8 * index * self.axes[0].stride
            moved = b.op("shl", kind, weights, splat(kind, str(bits))) if bits else weights
            shifted.append(b.cast("bitcast", kind, moved, whole))
        return shifted

    def window(self, room: Value, index: int, part: int) -> Value:
        """A vector of the words of a patch for one channel; the first one stands for those beyond
        the last."""
        b, kind = self.b, vector(self.lanes, I32)
        pair, which = divmod(index, NEIGHBORS)
        room = b.at(room, pair * NEIGHBORS * self.patch_nbytes)
        count = self.axes[1].taps * self.axes[0].words
        words = range(part * self.lanes, (part + 1) * self.lanes)
        offsets = (
            (word if word < count else 0) * self.word_nbytes + which * self.patch_nbytes
            for word in words
        )
        places = f"<{', '.join(f'i32 {offset}' for offset in offsets)}>"
        return b.cast(
            "bitcast", kind, self.words.gather_words(b, room, places), vector(self.block, I8)
        )

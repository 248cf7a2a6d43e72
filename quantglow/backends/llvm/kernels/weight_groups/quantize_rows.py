"""``QuantizeRows``: a work item is a row; a group is read for its largest magnitude, then for its
codes.

Magnitudes are compared as integers, by their bits: NaN is above all numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from quantglow.backends.llvm.builder import Builder, Value, f32, splat, vector
from quantglow.backends.llvm.isa.target import Target
from quantglow.backends.llvm.kernel import KernelCall
from quantglow.backends.llvm.kernels.vector import vectors
from quantglow.backends.llvm.kernels.vector.partial import load_partial
from quantglow.instr.program import Compute
from quantglow.ops import QuantizeRows
from quantglow.ops.weight_groups import GREATEST_FLOAT, LARGEST, SUM_NBYTES, group_nbytes
from quantglow.symbolic.size import likely


@dataclass
class RowQuantizer:
    """The kernel of one ``QuantizeRows``."""

    target: Target
    step: Compute
    b: Builder = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.b = Builder(index=self.target.isa.index)
        assert isinstance(self.step.op, QuantizeRows)
        self.group, (self.x,) = self.step.op.group, self.step.inputs
        self.rows, self.depth = self.x.shape
        self.groups = -(-self.depth // self.group)

    @property
    def lanes(self) -> int:
        return self.target.f32_lanes

    @property
    def ints(self) -> str:
        return vector(self.lanes, "i32")

    def call(self) -> KernelCall:
        work = float(likely(self.rows) * self.depth)
        views = (self.step.output, self.x)
        return KernelCall(self.text, views, self.rows, work, "quantize-rows", facts="")

    def text(self) -> str:
        b = self.b
        out, x = b.kernel(2)
        with b.loop("%begin", "%end") as row:
            at_x = b.at(x, b.mul(row, self.x.strides[0] * 4))
            at_out = b.at(out, b.mul(row, self.step.output.strides[0]))
            self.row(at_x, at_out)
        return b.finish()

    def row(self, x: Value, out: Value) -> None:
        b, whole = self.b, self.depth // self.group
        with b.loop(0, whole) as group:
            self.one_group(group, self.group, x, out)
        if whole < self.groups:
            self.one_group(str(whole), self.depth - whole * self.group, x, out)

    def one_group(self, group: Value, length: int, x: Value, out: Value) -> None:
        """Codes, their negative sum and the scale of the first elements of a group."""
        b = self.b
        at_x = b.at(x, b.mul(group, 4 * self.group))
        at_codes = b.at(out, b.mul(group, group_nbytes(self.group)))
        largest = self.largest(at_x, length)
        factor = b.op("fdiv", "float", f32(float(LARGEST)), largest)
        factor = vectors.number_or_less(b, 1, factor, float(GREATEST_FLOAT))
        total = self.codes(at_x, at_codes, b.broadcast(self.lanes, "float", factor), length)
        at_sum = b.at(at_codes, self.group)
        b.store("i32", total, at_sum)
        scale = b.op("fdiv", "float", largest, f32(float(LARGEST)))
        b.store("float", scale, b.at(at_sum, SUM_NBYTES))

    # -- the largest magnitude

    def largest(self, x: Value, length: int) -> Value:
        """The largest magnitude of some elements, NaN if there is one."""
        b, whole = self.b, length // self.lanes
        found = splat(self.ints, "0")
        if whole:
            loop = b.begin_loop(whole, [(self.ints, found)])
            at = b.at(x, b.mul(loop.index, 4 * self.lanes))
            (found,) = b.end_loop(loop, [self.greater(loop.carried[0], at, self.lanes)])
        if rest := length % self.lanes:
            found = self.greater(found, b.at(x, 4 * whole * self.lanes), rest)
        name = f"llvm.vector.reduce.smax.{vectors.suffix(self.lanes, 'i32')}"
        return vectors.from_bits(b, 1, b.call(name, "i32", (self.ints, found)))

    def greater(self, found: Value, x: Value, count: int) -> Value:
        """The greater of magnitudes, as integers."""
        b, kind = self.b, self.ints
        magnitude = b.op("and", kind, self.loaded("i32", x, count), splat(kind, str(0x7FFFFFFF)))
        name = f"llvm.smax.{vectors.suffix(self.lanes, 'i32')}"
        return b.call(name, kind, (kind, found), (kind, magnitude))

    def loaded(self, element: str, x: Value, count: int) -> Value:
        """The first elements of a vector, then zeros."""
        b, lanes, kind = self.b, self.lanes, vector(self.lanes, element)
        value = load_partial(b, self.target, element, lanes, count, x)
        if count == lanes:
            return value
        zero = splat(kind, "0" if element == "i32" else f32(0.0))
        return b.shuffle(kind, value, zero, [i if i < count else lanes + i for i in range(lanes)])

    # -- codes

    def codes(self, x: Value, out: Value, factors: Value, length: int) -> Value:
        """Write the codes of a group, zeros behind its elements; their negative sum."""
        b, lanes, sums = self.b, self.lanes, splat(self.ints, "0")
        if whole := length // lanes:
            loop = b.begin_loop(whole, [(self.ints, sums)])
            at_x, at_out = (b.at(p, b.mul(loop.index, n * lanes)) for p, n in ((x, 4), (out, 1)))
            found = self.vector(at_x, at_out, factors, loop.carried[0], lanes)
            (sums,) = b.end_loop(loop, [found])
        for start in range(whole * lanes, self.group, lanes):
            at = b.at(out, start)
            if start < length:
                sums = self.vector(b.at(x, 4 * start), at, factors, sums, length - start)
            else:
                b.store(vector(lanes, "i8"), splat(vector(lanes, "i8"), "0"), at)
        return self.negative(sums)

    def vector(self, x: Value, out: Value, factors: Value, sums: Value, count: int) -> Value:
        """Write the codes of a vector; the sums continued by them."""
        b, lanes, kind = self.b, self.lanes, vector(self.lanes, "float")
        steps = b.op("fmul", kind, self.loaded("float", x, count), factors)
        bytes_kind = vector(lanes, "i8")
        codes = b.cast(
            "trunc", self.ints, self.target.isa.round_to_int(b, lanes, steps), bytes_kind
        )
        b.store(bytes_kind, codes, out)
        return b.op("add", self.ints, sums, b.cast("sext", bytes_kind, codes, self.ints))

    def negative(self, sums: Value) -> Value:
        name = f"llvm.vector.reduce.add.{vectors.suffix(self.lanes, 'i32')}"
        return self.b.op("sub", "i32", "0", self.b.call(name, "i32", (self.ints, sums)))

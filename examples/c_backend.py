"""A code generator of program segments: C99 for int8 instructions, and the system's compiler.

Run it: ``python examples/c_backend.py MODEL SAMPLES``.  ``README.md`` beside it has the steps.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from ctypes import CDLL, c_void_p
from pathlib import Path
from string import ascii_lowercase

import numpy as np

import quantglow as qg
from quantglow.ir.ops import Conv, Elementwise, Table
from quantglow.ir.ops.arithmetic import integer_bounds
from quantglow.ir.ops.expression import Expr
from quantglow.ir.program.layout import Bases, ProgramLayout
from quantglow.ir.program.program import Compute, Copy, Fill, Instruction, View
from quantglow.ir.types import DType

HEAD = "#include <math.h>\n#include <stdint.h>\nvoid run(uint8_t **base) {"
CC = "cc -std=c99 -O2 -ffp-contract=off -fwrapv -fno-strict-aliasing -shared -fPIC -x c - -lm -o"
"""Each float32 operation is rounded, as in the interpreter: no fused multiply-add."""

TYPES = {DType.U8: "uint8_t", DType.I8: "int8_t", DType.I32: "int32_t", DType.F32: "float"}
BYTES = (DType.U8, DType.I8)
FUNCTIONS = {
    "add": "({} + {})", "sub": "({} - {})", "mul": "({} * {})", "div": "({} / {})",
    "iadd": "({} + {})", "isub": "({} - {})", "imul": "({} * {})", "int": "(int32_t){}",
    "float": "(float){}", "rint": "rintf({})", "fmin": "fminf({}, {})", "fmax": "fmaxf({}, {})",
}  # fmt: skip
"""Functions of scalar expressions; rintf rounds half to even."""


def number(value: float) -> str:
    """A float32, to the last bit."""
    return f"{float(np.float32(value)).hex()}f"


def expression(expr: Expr, operands: Sequence[str]) -> str:
    if expr.op == "arg":
        return operands[int(expr.value)]
    if not expr.args:
        return number(float(expr.value)) if expr.op == "f" else str(int(expr.value))
    return FUNCTIONS[expr.op].format(*(expression(part, operands) for part in expr.args))


def loops(names: str, sizes: Sequence[object], body: str) -> str:
    counters = zip(names, sizes, strict=True)
    return " ".join([*(f"for (int {i} = 0; {i} < {d}; {i}++)" for i, d in counters), body])


class Printer(ProgramLayout):
    """C for instructions, on buffers at offsets from bases."""

    def at(self, view: View, *index: str) -> str:
        """An element of a view, by default that of the loops of ``assign``."""
        base, offset_bytes = self.place(view)
        index = index or tuple(ascii_lowercase[: len(view.shape)])
        terms = [f"({i}) * {stride}" for i, stride in zip(index, view.strides, strict=True)]
        first = offset_bytes // view.type.dtype.nbytes
        return f"(({TYPES[view.type.dtype]} *)base[{base}])[{' + '.join([str(first), *terms])}]"

    def assign(self, y: View, value: str) -> str:
        return loops(ascii_lowercase[: len(y.shape)], y.shape, f"{self.at(y)} = {value};")

    def statements(self, step: Instruction) -> Iterator[str]:
        match step:
            case Copy(src=x, dst=y):
                yield self.assign(y, self.at(x))
            case Fill(value=value):
                yield from (self.assign(box, str(int(value))) for box in step.boxes())
            case Compute(op=Elementwise() as op, inputs=inputs, output=y):
                operands = [self.at(x.expanded(y.shape)) for x in inputs]
                yield self.assign(y, expression(op.expression, operands))
            case Compute(op=Table(), inputs=(x, table), output=y):
                yield self.assign(y, self.at(table, f"{self.at(x)} - {x.type.dtype.limits[0]}"))
            case Compute(op=Conv() as op, inputs=inputs, output=y):
                views = dict(zip(op.operand_labels, inputs, strict=True))
                yield from self.convolution(op, views, y)

    def convolution(self, op: Conv, views: dict[str, View], y: View) -> Iterator[str]:
        """The sums of a pixel's channels in int32, then the one rounding of each."""
        x, w, (depth, channels) = views["x"], views["w"], views["w"].type.fixed_shape[2:]
        row = f"i * {op.strides[0]} + r * {op.dilations[0]}"
        column = f"j * {op.strides[1]} + s * {op.dilations[1]}"
        value = self.at(x, "n", row, column, f"o / {channels // op.group} * {depth} + c")
        product = f"({value} - {x.type.params.zero_point}) * {self.at(w, *'rsco')}"
        result = "(float)sum[o] * scale[o]"
        if (residual := views.get("residual")) is not None:
            steps = f"(float)({self.at(residual, *'nijo')} - {residual.type.params.zero_point})"
            result += f" + {steps} * {number(op.residual_ratio)}"
        if op.out is not None:
            zero_point, ends = op.type.params.zero_point, integer_bounds(op.out, op.low, op.high)
            low, high = (number(end - zero_point) for end in ends)
            result = f"(int32_t)fminf(fmaxf(rintf({result}), {low}), {high}) + {zero_point}"
        scales = np.broadcast_to(op.accumulator_scale(), channels)
        yield f"static const float scale[] = {{{', '.join(map(number, scales))}}};"
        yield loops("nij", y.shape[:3], f"{{ int32_t sum[{channels}];")
        yield loops("o", [channels], f"sum[o] = {self.at(views['b'], 'o') if 'b' in views else 0};")
        yield loops("rsco", w.shape, f"sum[o] += {product};")
        yield loops("o", [channels], f"{self.at(y, *'nijo')} = {result}; }}")


class CGenerator(qg.ProgramGenerator):
    name = "c"

    def runs(self, instruction: Instruction) -> bool:
        """Data movement, and operators on 8-bit activations whose padding is in memory already."""
        if not all(view.type.dtype in TYPES for view in instruction.views):
            return False
        match instruction:
            case Compute(op=Elementwise() as op):
                known, parts = {"arg", "f", "i", *FUNCTIONS}, [*op.expression.parts()]
                is_finite = all(np.isfinite(float(part.value)) for part in parts)
                return is_finite and {p.op for p in parts} <= known and op.type.dtype in BYTES
            case Compute(op=Conv() as op):
                is_int8 = op.x.type.dtype in BYTES and (op.out is not None or op.is_bare)
                return is_int8 and op.activation is None and not any(op.pads)
            case Fill(dst=y):
                return y.type.dtype in BYTES
        return isinstance(getattr(instruction, "op", instruction), Table | Copy)

    def generate(self, planned: qg.PlannedProgram, num_threads: int) -> Callable[[Bases], None]:
        """The compiled function of a segment; one thread runs it, whatever ``num_threads``."""
        printer = Printer(planned.program, planned.plan)
        blocks = ("\n".join(printer.statements(s)) for s in planned.program.instructions)
        run = build("\n".join([HEAD, *(f"{{ {block} }}" for block in blocks), "}\n"]))
        return lambda bases: run((c_void_p * len(bases))(*(base.ctypes.data for base in bases)))


def build(text: str) -> Callable[..., None]:
    """The function ``run`` of a text in C."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "segment.so")
        try:
            subprocess.run([*CC.split(), library], input=text, text=True, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise qg.BackendError(f"{error}. Remedy: install a C compiler as cc.") from error
        return CDLL(str(library)).run


if __name__ == "__main__":
    print(qg.quantize_and_compile(*sys.argv[1:], backends=[CGenerator()]).report)

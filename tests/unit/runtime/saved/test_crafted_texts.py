"""Graphs that inference could accept and no program has are refused when their text is read."""

from __future__ import annotations

import pytest

import quantglow.ir.ops  # noqa: F401 - registers the operators that graphs name
from quantglow.runtime.saved.saving import graph_from
from quantglow.support.errors import FileFormatError

CODES = "ElementType('i8', 0.5, 0)"
Q = f"""'x': f32[4x8] = Input(tensor=TensorType('f32', (4, 8)))
'q': i8<0.5,0>[4x8] = Quantize(x='x', out={CODES})
'w': i8<0.5,0>[8x6] = Constant(value=Dense('i8', (8, 6), (1,)), element={CODES})
"""
TALL = "'x': f32[1x1048576x1x1] = Input(tensor=TensorType('f32', (1, 1048576, 1, 1)))\n"
WINDOW = "kernel=(65536, 1), pads=(65536, 0, 65535, 0)"
SMALL = "'x': f32[8] = Input(tensor=TensorType('f32', (8,)))\n"
BODY = """body 'b'
  't': f32[8] = Input(tensor=TensorType('f32', (8,)))
  'b': f32[8] = Tanh(x='t')
  output 'b' = 'b'
"""

REFUSED = {
    "average": (f"{TALL}'y': f32[1] = AveragePool(x='x', {WINDOW})", "its tables"),
    "maximum": (f"{TALL}'y': f32[1] = MaxPool(x='x', {WINDOW})", "its tables"),
    "channels": (
        """'x': f32[1x1048576] = Input(tensor=TensorType('f32', (1, 1048576)))
'y': f32[1x1048576] = LRN(x='x', size=65536)""",
        "its tables",
    ),
    "resize": (
        """'x': f32[1x1x1x1] = Input(tensor=TensorType('f32', (1, 1, 1, 1)))
'y': f32[1] = Resize(x='x', sizes=(1073741824, 1), scales=(1073741824.0, 1.0))""",
        "its tables",
    ),
    "interpolated": (
        """'x': i32[1x4x4x1] = Input(tensor=TensorType('i32', (1, 4, 4, 1)))
'y': i32[1] = Resize(x='x', sizes=(8, 8), scales=(2.0, 2.0), mode='linear')""",
        "are interpolated",
    ),
    "conditions": (
        """'x': bool[1x4x4x1] = Input(tensor=TensorType('bool', (1, 4, 4, 1)))
'y': bool[1x3x3x1] = MaxPool(x='x', kernel=(2, 2))""",
        "x must be",
    ),
    "weights": (
        """'x': f32[1x4x4x8] = Input(tensor=TensorType('f32', (1, 4, 4, 8)))
'w': f32[3x3x8x4] = Input(tensor=TensorType('f32', (3, 3, 8, 4)))
'y': f32[1x2x2x4] = Conv(x='x', w='w')""",
        "w must be a Constant",
    ),
    "bias": (
        f"""{Q}'b': i32[6] = Input(tensor=TensorType('i32', (6,)))
'y': f32[4x6] = Gemm(x='q', w='w', b='b')""",
        "b must be a Constant",
    ),
    "residual": (
        f"""'x': f32[1x4x4x1] = Input(tensor=TensorType('f32', (1, 4, 4, 1)))
'r': f32[1x4x4x1] = Input(tensor=TensorType('f32', (1, 4, 4, 1)))
'q': i8<0.5,0>[1x4x4x1] = Quantize(x='x', out={CODES})
'w': i8<0.5,0>[1x1x1x1] = Constant(value=Dense('i8', (1, 1, 1, 1), (1,)), element={CODES})
'y': i8<0.5,0>[1x4x4x1] = Conv(x='q', w='w', residual='r', out={CODES})""",
        "both be float or both quantized",
    ),
    "table": (
        f"""'x': i8[4] = Input(tensor=TensorType('i8', (4,)))
't': i8[256] = Input(tensor=TensorType('i8', (256,)))
'y': i8<0.5,0>[4] = Table(x='x', table='t', out={CODES})""",
        "table must be a Constant",
    ),
    "groups": (
        """'x': f32[4x32] = Input(tensor=TensorType('f32', (4, 32)))
'w': u8[8x1x32] = Input(tensor=TensorType('u8', (8, 1, 32)))
's': f32[8x1] = Input(tensor=TensorType('f32', (8, 1)))
'y': f32[4x8] = GroupedMatMul(x='x', w='w', scales='s', bits=8)""",
        "w must be a Constant",
    ),
    "trips": (
        f"{SMALL}{BODY}'y': f32[8] = Loop(carried=('x',), sliced=(), captured=(), "
        f"body=Graph('b'), trips={2**70})",
        "of 1180591620717411303424 trips",
    ),
    "literal": (
        f"{SMALL}'y': i32[8] = Elementwise(args=('x',), "
        "expression=Expr('iadd(int32($0), 4294967296i)'), out=ElementType('i32'))",
        "4294967296 is not a 32-bit integer",
    ),
    "bounds": (
        f"{Q}'y': i8<0.5,0>[4x8] = Add(x='q', y='q', low=nan, out={CODES})",
        "bounds must be numbers",
    ),
}


@pytest.mark.parametrize(("lines", "message"), REFUSED.values(), ids=REFUSED)
def test_a_text_without_a_program_is_refused(lines: str, message: str) -> None:
    with pytest.raises(FileFormatError, match=message):
        graph_from(f"graph ''\n{lines}\noutput 'y' = 'y'\n", {}, {})

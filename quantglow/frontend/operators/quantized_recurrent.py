"""Importer of DynamicQuantizeLSTM."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quantglow.foreign_types import Array
from quantglow.frontend.nodes.context import Call, Unsupported, importer
from quantglow.frontend.nodes.values import as_float32
from quantglow.frontend.operators.dynamic import dynamically_quantized
from quantglow.frontend.operators.integer_sums import ZeroPoint, as_whole, rows_times_weights
from quantglow.frontend.operators.recurrent import LSTM_FUNCTIONS, cells_of, lstm_of
from quantglow.frontend.operators.recurrent_steps import Cell, lengths_of
from quantglow.graph.node import Node
from quantglow.ops.expression import arg
from quantglow.ops.expression import call as fn
from quantglow.ops.primitives import Elementwise
from quantglow.types import DType, ElementType


@dataclass(frozen=True, kw_only=True)
class QuantizedCell(Cell):
    """A cell with integer weights around 0 and their scales, [1] or [4 * H].

    The input of all steps, and the hidden state [B, H] of each, are uint8 with one scale for the
    whole tensor: onnxruntime's meaning on one thread (on more it may cut the batch first).
    """

    w_scales: Array
    r_scales: Array

    def from_input(self, x: Node) -> Node:
        return self.real_product("projected", x, self.w, "W", self.w_scales)

    def gates(self, x: Node, h: Node) -> Node:
        product = self.real_product("state", h, self.r, "R", self.r_scales)
        bias = self.constant("b", (self.input_bias + self.state_bias).astype(np.float32))
        return self.add(self.add(x, product), bias)

    def most_unrolled(self, x: Node) -> int:
        return 1

    def real_product(self, tag: str, x: Node, w: Array, kind: str, scales: Array) -> Node:
        """``float(sum) * (scale * scales)`` of x, which is quantized first, and the weights."""
        call = self.call
        names = [call.derived(f"{tag}-{part}") for part in ("codes", "scale", "zero_point")]
        codes, scale, point = dynamically_quantized(call, x, names)
        whole = as_whole(call, codes)
        sums = rows_times_weights(
            call, call.derived(f"{tag}-sums"), whole, ZeroPoint(point, 128), w
        )
        return Elementwise(
            name=call.derived(tag),
            args=(sums, scale, self.constant(f"{kind}-scales", scales)),
            expression=fn("mul", fn("float", arg(0)), fn("mul", arg(1), arg(2))),
            out=ElementType(DType.F32),
        )


@importer("com.microsoft.DynamicQuantizeLSTM")
def dynamic_quantize_lstm(call: Call) -> list[Node]:
    """LSTM with weights W [D, I, 4 * H] and R [D, H, 4 * H] of int8 or uint8."""
    if lengths_of(call, *call.shape(0)[:2]) is not None:
        raise Unsupported("its states have one range for sequences of different lengths")
    w, r = (call.array(position, "weight").astype(np.int32) for position in (1, 2))
    w, r = w - points_of(call, 9), r - points_of(call, 11)
    w_scales, r_scales = (as_float32(call.array(position, "scale")) for position in (8, 10))
    cells = cells_of(call, 4, LSTM_FUNCTIONS, w, r)
    made = [
        QuantizedCell(
            **vars(cell), w_scales=w_scales[d].reshape(-1), r_scales=r_scales[d].reshape(-1)
        )
        for d, cell in enumerate(cells)
    ]
    return lstm_of(call, made)


def points_of(call: Call, position: int) -> Array:
    """Zero points that broadcast to the weights [D, I, 4 * H].  Raises ``ValueError`` where the
    operator has none: it has one for each direction, 0 for int8."""
    points = call.array(position, "zero point").astype(np.int32)
    flat = points.reshape(len(points), -1)
    if (flat != flat[:, :1]).any():
        raise ValueError("the zero points of a direction differ")
    return flat[:, None, :1]

"""Importers of running sums and products: log2(n) steps, each of which doubles how far back the
elements reach."""

from __future__ import annotations

from quantglow.frontend.nodes.context import Call, importer
from quantglow.frontend.operators.integers import wrapped
from quantglow.frontend.operators.shape import normal
from quantglow.frontend.operators.slicing import along
from quantglow.graph.node import Node
from quantglow.ops import Elementwise, Pad
from quantglow.ops.expression import arg
from quantglow.ops.expression import call as fn
from quantglow.types import ElementType

_COMBINE = {"CumSum": ("add", 0), "CumProd": ("mul", 1)}


@importer(*_COMBINE)
def scan(call: Call) -> Node:
    """Combination of the elements up to each one; without itself if ``exclusive``, from the end if
    ``reverse``."""
    x = call.tensor(0)
    (given,) = (int(a) for a in call.array(1, "axis").reshape(-1))
    (axis,) = normal((given,), x.type.rank)
    function, neutral = _COMBINE[call.proto.op_type]
    dtype, length = x.type.dtype, x.type.shape[axis]
    combine = fn(function if dtype.is_float else f"i{function}", arg(0), arg(1))
    backwards = bool(call.integer("reverse", 0))
    if call.integer("exclusive", 0):
        x = shifted(call, x, axis, 1, backwards, neutral)
    reach = 1
    while reach < length or not isinstance(x, Elementwise):
        other = shifted(call, x, axis, reach, backwards, neutral)
        name = call.result if 2 * reach >= length else call.derived("part")
        value = wrapped(combine, dtype)
        x = Elementwise(name=name, args=(x, other), expression=value, out=ElementType(dtype))
        reach *= 2
    return x


def shifted(call: Call, x: Node, axis: int, steps: int, backwards: bool, neutral: int) -> Node:
    """Each element moved on by so many steps; the neutral element moves in."""
    length = x.type.shape[axis]
    steps = min(steps, length)
    kept = range(steps, length) if backwards else range(length - steps)
    widths = tuple(steps if i == axis else 0 for i in range(x.type.rank))
    none = (0,) * x.type.rank
    before, after = (none, widths) if backwards else (widths, none)
    part = along(call.derived("earlier"), x, axis, kept)
    name = call.derived("shifted")
    return Pad(name=name, x=part, before=before, after=after, value=float(neutral))

"""Values inside of loops, shown to listeners: of all trips together, as of a value with one more
axis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from quantglow.foreign_types import Array
from quantglow.graph.graph import Graph
from quantglow.graph.node import Constant, Node
from quantglow.ops.contraction import Contraction
from quantglow.ops.loop import Loop

Listener = Callable[[Node, Array], None]


def multiplied(body: Graph) -> tuple[Node, ...]:
    """The computed values that products with constant weights read."""
    layers = (n for n in body.nodes if isinstance(n, Contraction) and isinstance(n.w, Constant))
    return tuple(dict.fromkeys(layer.x for layer in layers if not isinstance(layer.x, Constant)))


@dataclass
class Watched:
    """Shows the values of each body once in a run, whatever the number of results of its loop."""

    listeners: Sequence[Listener]
    seen: set[Graph] = field(default_factory=set)

    def value(self, node: Loop, operands: Sequence[Array]) -> Array:
        """The value of a loop; listeners see what is multiplied in its body, if it is finite."""
        wanted = () if node.body in self.seen else multiplied(node.body)
        self.seen.add(node.body)
        if not wanted:
            return node.evaluate(*operands)
        trips: list[list[Array]] = []

        def watch(values: Mapping[Node, Array]) -> None:
            trips.append([values[x] for x in wanted])

        with np.errstate(all="ignore"):
            result = np.asarray(node.watched(operands, watch))
        for x, arrays in zip(wanted, zip(*trips, strict=True), strict=bool(trips)):
            stacked = np.stack(arrays)
            if np.isfinite(stacked).all():
                for listener in self.listeners:
                    listener(x, stacked)
        return result

"""A cache of recovered layers: accuracy control quantizes many times, and most layers come again.

A recovered layer is a pure function of the int8 graph before it, and of the float graph and the
samples, which stay the same for one ``Cache``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from quantglow.graph.attributes import encode
from quantglow.graph.graph import Graph
from quantglow.graph.node import Constant, Node, operand_fields
from quantglow.quantization.convert.rules import Operands


@dataclass
class Cache:
    """The layers that ``recover`` improved for one float graph and its samples, by ``signatures``.

    Most models are recovered once, so signatures are made when a second graph is looked up.
    """

    layers: dict[str, Operands] = field(default_factory=dict)
    unsigned: list[tuple[Graph, Mapping[str, Any]]] = field(default_factory=list)

    def known(self, graph: Graph) -> dict[str, Operands]:
        """The operands of those layers of an int8 graph that were recovered before, by name."""
        while self.unsigned:
            self._sign(*self.unsigned.pop())
        if not self.layers:
            return {}
        return {
            node.name: self.layers[signature]
            for node, signature in signatures(graph).items()
            if signature in self.layers
        }

    def add(self, graph: Graph, recovered: Mapping[str, Any]) -> None:
        """Store the improved layers of an int8 graph, by name."""
        if recovered:
            self.unsigned.append((graph, recovered))

    def _sign(self, graph: Graph, recovered: Mapping[str, Any]) -> None:
        for node, signature in signatures(graph).items():
            if node.name in recovered:
                layer = recovered[node.name]
                self.layers[signature] = {"w": layer.w, "b": layer.b}


def signatures(graph: Graph) -> dict[Node, str]:
    """A digest for each node of all that its value depends on, beside the graph's inputs."""
    found: dict[Node, str] = {}
    for node in graph.nodes:
        digest = hashlib.sha256(f"{node.op} {node.name} {encode(node.type)}".encode())
        if isinstance(node, Constant):
            digest.update(np.ascontiguousarray(node.value).tobytes())
        else:
            present = [getattr(node, name) is not None for name in operand_fields(type(node))]
            attributes = [f"{name}={encode(value)}" for name, value in node.attributes().items()]
            before = [found[operand] for operand in node.operands]
            digest.update(repr((present, attributes, before)).encode())
        found[node] = digest.hexdigest()
    return found

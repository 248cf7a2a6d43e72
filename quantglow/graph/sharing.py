"""Equal Constants of many graphs, held in memory once."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from weakref import WeakValueDictionary

import numpy as np

from quantglow.graph.graph import Graph
from quantglow.graph.node import Constant, Node
from quantglow.types import Array

LEAST_NBYTES = 4096
"""Minimum size of an array that is shared, in bytes."""


def content_key(array: Array) -> bytes:
    """A hash of the type, the shape and the elements."""
    digest = hashlib.sha256(f"{array.dtype.str}{array.shape}".encode())
    digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.digest()


@dataclass(frozen=True)
class SharedArrays:
    """Arrays by content, held weakly.  Thread-safe."""

    _known: WeakValueDictionary[bytes, Array] = field(default_factory=WeakValueDictionary)

    def shared(self, array: Array) -> Array:
        """The first array with this content."""
        return self._known.setdefault(content_key(array), array)

    def graph(self, graph: Graph) -> Graph:
        """The graph with shared arrays."""

        def rule(node: Node) -> Node:
            if not isinstance(node, Constant) or node.value.nbytes < LEAST_NBYTES:
                return node
            known = self.shared(node.value)
            return node if known is node.value else replace(node, value=known)

        return graph.map_bodies(self.graph).rebuild(rule)

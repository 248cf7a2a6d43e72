"""Equal Constants of many graphs, held once; large ones in pages of a file."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from mmap import mmap
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np

from quantglow import pages
from quantglow.foreign_types import Array
from quantglow.graph.graph import Graph
from quantglow.graph.node import Constant, Node

LEAST_NBYTES = 4096
"""Minimum size of an array that is shared, in bytes."""


def content_key(array: Array) -> bytes:
    """A hash of the type, the shape and the elements; made once for an array in pages."""
    kind = f"{array.dtype.str}{array.shape}{array.strides}"
    if (file := pages.file_of(array)) is None:
        return hashed(array)
    known = _keys.setdefault(file, {})
    place = array.ctypes.data, kind
    if place not in known:
        known[place] = hashed(array)
        pages.release_pages()
    return known[place]


def hashed(array: Array) -> bytes:
    """sha256 of the type, the shape and the elements."""
    digest = hashlib.sha256(f"{array.dtype.str}{array.shape}".encode())
    digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.digest()


_keys: WeakKeyDictionary[mmap, dict[tuple[int, str], bytes]] = WeakKeyDictionary()
"""Hashes of arrays in pages by their places, which are read-only."""


@dataclass(frozen=True)
class SharedArrays:
    """Arrays by content, held weakly.  Thread-safe."""

    _known: WeakValueDictionary[bytes, Array] = field(default_factory=WeakValueDictionary)

    def graph(self, graph: Graph) -> Graph:
        """The graph with shared arrays; those that are new lie in pages."""
        found = [array for array in arrays_of(graph) if array.nbytes >= LEAST_NBYTES]
        keys = [content_key(array) for array in found]
        new = {k: a for k, a in zip(keys, found, strict=True) if k not in self._known}
        new = dict(zip(new, in_pages(list(new.values())), strict=True))
        pairs = zip(keys, found, strict=True)
        return with_arrays(graph, {id(a): self._keep(k, new.get(k, a)) for k, a in pairs})

    def _keep(self, key: bytes, array: Array) -> Array:
        return self._known.setdefault(key, array)


def paged_graph(graph: Graph) -> Graph:
    """The graph with its large arrays in pages."""
    found = arrays_of(graph)
    return with_arrays(graph, dict(zip(map(id, found), in_pages(found), strict=True)))


def arrays_of(graph: Graph) -> list[Array]:
    """The arrays of its Constants, each once."""
    constants = (node for node in graph.every_node() if isinstance(node, Constant))
    return list({id(node.value): node.value for node in constants}.values())


def in_pages(arrays: list[Array]) -> list[Array]:
    """The arrays, the large ones in pages if that is worth it."""
    large = [a for a in arrays if a.nbytes >= pages.LEAST_NBYTES and pages.file_of(a) is None]
    made = pages.paged(large) if pages.is_worth_paging(a.nbytes for a in large) else None
    found = dict(zip(map(id, large), large if made is None else made, strict=True))
    return [found.get(id(array), array) for array in arrays]


def with_arrays(graph: Graph, arrays: Mapping[int, Array]) -> Graph:
    """The graph with other arrays in its Constants, by the ``id`` of its own."""

    def rule(node: Node) -> Node:
        if not isinstance(node, Constant):
            return node
        found = arrays.get(id(node.value), node.value)
        return node if found is node.value else replace(node, value=found)

    return graph.map_bodies(lambda body: with_arrays(body, arrays)).rebuild(rule)

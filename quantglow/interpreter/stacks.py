"""Values of several samples at once, small ones stacked along axis 0.

Python and NumPy take as long for a small array as for a few of them.  So an operator that treats
samples apart (``Node.for_samples``) computes a few of them in one call, as many as fit
``STACK_NBYTES``; large values stay apart, in the cache.  The results are those of one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from quantglow.graph.node import Constant, Input, Node
from quantglow.ops.contraction import Contraction
from quantglow.ops.convolution import Conv
from quantglow.ops.shape import Concat
from quantglow.types import Array

STACK_NBYTES = 2**19
"""Maximum size of a stack of values, in bytes, unless a single value is larger."""

MOST = 8
"""Maximum number of samples of a stack."""


class Layout:
    """Consecutive samples in parts, each of which is one array."""

    def __init__(self, parts: Sequence[range]) -> None:
        self.parts = tuple(parts)
        self.places = {
            sample: (index, sample - part.start)
            for index, part in enumerate(self.parts)
            for sample in part
        }


@dataclass(frozen=True)
class Stacks:
    """The value of a node for several samples, an array for each part of ``layout``; None: all
    samples share the single array.
    """

    arrays: Sequence[Array]
    layout: Layout | None = None

    @staticmethod
    def shared(value: Array) -> Stacks:
        """One value for all samples."""
        return Stacks([value])

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return sum(array.nbytes for array in self.arrays)

    def of(self, sample: int) -> Array:
        """The value of one sample."""
        if self.layout is None:
            return self.arrays[0]
        index, offset = self.layout.places[sample]
        part, array = self.layout.parts[index], self.arrays[index]
        if len(part) == 1:
            return array
        own = len(array) // len(part)
        return array[offset * own : (offset + 1) * own]

    def stacked(self, samples: Sequence[int]) -> Array:
        """The values of some samples, stacked along axis 0."""
        if self.layout is None:
            return self.arrays[0]
        if len(samples) == 1:
            return self.of(samples[0])
        index, offset = self.layout.places[samples[0]]
        if not offset and self.layout.parts[index] == samples:
            return self.arrays[index]
        return np.concatenate([self.of(sample) for sample in samples])

    def parts(self, layout: Layout) -> list[Array]:
        """The arrays of another layout."""
        if self.layout is layout:
            return list(self.arrays)
        return [self.stacked(part) for part in layout.parts]

    def mapped(self, function: Callable[..., Array], *others: Stacks) -> Stacks:
        """A function of single values, which must not mix the elements along axis 0."""
        if self.layout is None:
            return Stacks([function(*self.arrays)])
        given = zip(self.arrays, *(other.parts(self.layout) for other in others), strict=True)
        return Stacks([function(*arrays) for arrays in given], self.layout)


def together_of(node: Node) -> int:
    """How many samples of a node to stack: a power of two."""
    largest = max([node.type.nbytes, *(o.type.nbytes for o in node.operands if _is_computed(o))])
    fitting = min(STACK_NBYTES // max(largest, 1), MOST)
    if fitting < 2 or joined(node, 2) is None:
        return 1
    return 1 << (fitting.bit_length() - 1)


def joined(node: Node, count: int) -> Node | None:
    """The node that computes ``count`` samples stacked along axis 0; None where they may depend on
    each other.
    """
    shape = node.type.shape
    computed = [operand for operand in node.operands if _is_computed(operand)]
    if not shape or not computed or any(o.type.shape[:1] != shape[:1] for o in computed):
        return None
    if _has_own_constants(node):
        return None
    changes = node.for_samples((count * shape[0], *shape[1:]))
    if not changes:
        return None if changes is None else node
    given = tuple(_stand_in(o, count) if _is_computed(o) else o for o in node.operands)
    return node.with_operands(given, **changes)


def _has_own_constants(node: Node) -> bool:
    """Whether Constants have an entry for each sample along axis 0."""
    if isinstance(node, Contraction):
        return isinstance(node, Conv) and isinstance(node.residual, Constant)
    return isinstance(node, Concat) and any(isinstance(part, Constant) for part in node.parts)


def _stand_in(operand: Node, count: int) -> Input:
    first, *rest = operand.type.shape
    return Input(name=operand.name, tensor=operand.type.with_shape((count * first, *rest)))


def _is_computed(operand: Node) -> bool:
    return not isinstance(operand, Constant)

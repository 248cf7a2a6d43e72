"""Runs of several samples at once, with small values stacked along axis 0.

Python and NumPy take as long for a small array as for a few of them.  So an operator that treats
samples apart (``Node.for_samples``) computes a few of them in one call, as many as fit
``STACK_NBYTES`` or the size of its weights; larger values stay apart, in the cache.  The results
are those of one by one, bit for bit where native code adds: the order of NumPy's sums may depend on
the number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol, TypeVar

import numpy as np

from quantglow.interpreter import Listener, check_feeds, recorded_result
from quantglow.interpreter.branches import find_branches
from quantglow.interpreter.executor import Execution
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input, Node
from quantglow.ir.ops.contraction import Contraction
from quantglow.ir.ops.convolution import Conv
from quantglow.ir.ops.loop import Loop
from quantglow.ir.ops.shape import Concat
from quantglow.support.arrays import Array
from quantglow.support.processes.workers import each

Sample = TypeVar("Sample")

STACK_NBYTES = 2**19
"""Maximum size of a stack of values, in bytes, unless a single value or the weights are larger."""

MOST = 8
"""Maximum number of samples of a stack, and of a group that runs together."""

GROUP_NBYTES = 2**26
"""Maximum size of the values of a group, in bytes, unless it is a single sample."""


class StackLayout:
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
    layout: StackLayout | None = None

    @staticmethod
    def shared(value: Array) -> Stacks:
        """One value for all samples."""
        return Stacks([value])

    @property
    def is_shared(self) -> bool:
        """Whether all samples share one value."""
        return self.layout is None

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
        length = len(array) // len(part)
        return array[offset * length : (offset + 1) * length]

    def stack(self, samples: Sequence[int]) -> Array:
        """The values of some samples, stacked along axis 0."""
        if self.layout is None:
            return self.arrays[0]
        if len(samples) == 1:
            return self.of(samples[0])
        index, offset = self.layout.places[samples[0]]
        if not offset and self.layout.parts[index] == samples:
            return self.arrays[index]
        return np.concatenate([self.of(sample) for sample in samples])

    def parts(self, layout: StackLayout) -> list[Array]:
        """The arrays of another layout."""
        if self.layout is layout:
            return list(self.arrays)
        return [self.stack(part) for part in layout.parts]

    def mapped(self, function: Callable[..., Array], *others: Stacks) -> Stacks:
        """A function of single values, which must not mix the elements along axis 0."""
        if self.layout is None:
            return Stacks([function(*self.arrays)])
        operands = zip(self.arrays, *(other.parts(self.layout) for other in others), strict=True)
        return Stacks([function(*arrays) for arrays in operands], self.layout)


class Stackable(Protocol):
    """The value of an operand, as an ``Evaluator`` reads it."""

    @property
    def is_shared(self) -> bool: ...

    def stack(self, samples: Sequence[int]) -> Array: ...


class Evaluator:
    """Evaluates nodes for several samples at once, in the parts of a layout; parts run side by
    side.

    ``constants``: Constant -> the value that stands in for its own.
    """

    def __init__(
        self,
        samples: Sequence[Mapping[str, Array]],
        constants: Mapping[Node, Array] | None = None,
    ) -> None:
        self.samples, self.constants = samples, constants or {}
        self.layouts: dict[int, StackLayout] = {}

    def counterpart(self, node: Node, sample: int) -> Node:
        """The node at the shapes of a sample."""
        return node

    def alike(self, sample: int) -> object:
        """A value that is the same for samples of the same shapes."""
        return None

    def compute(self, node: Node, operands: Sequence[Stackable]) -> Stacks:
        """The value of a node for each sample, from those of its operands."""
        if isinstance(node, Constant):
            return Stacks.shared(self.constants.get(node, node.value))
        if isinstance(node, Input):
            return Stacks([np.asarray(f[node.name]) for f in self.samples], self.layout(1))
        recorded = [recorded_result(node, feeds) for feeds in self.samples]
        results = [result for result in recorded if result is not None]
        if results and len(results) == len(recorded):
            return Stacks(results, self.layout(1))
        layout = self.layout(self.together(node))
        arrays = each(lambda part: self._compute(node, operands, part), layout.parts)
        return Stacks(arrays, layout)

    def together(self, node: Node) -> int:
        """Number of samples of a node to stack."""
        return samples_together(node)

    def layout(self, together: int) -> StackLayout:
        """All samples in parts of equal shapes, of ``together`` at most."""
        if together not in self.layouts:
            count = len(self.samples)
            parts = -(-count // together)
            if parts > 1:  # An even number keeps two cores equally busy.
                together = -(-count // (parts + parts % 2))
            self.layouts[together] = StackLayout(self.parts(range(count), together))
        return self.layouts[together]

    def parts(self, samples: range, together: int) -> list[range]:
        """The samples in parts of equal shapes, of ``together`` at most, in their order."""
        parts: list[range] = []
        start = 0
        for _, alike in groupby(samples, self.alike):
            end = start + len(list(alike))
            parts += [samples[i : min(i + together, end)] for i in range(start, end, together)]
            start = end
        return parts

    def _compute(self, node: Node, operands: Sequence[Stackable], part: range) -> Array:
        """The values for some samples; those of several are stacked along the first axis."""
        counterpart = self.counterpart(node, part[0])
        is_single = len(part) == 1 or isinstance(counterpart, Contraction)
        stacked = counterpart if is_single else join(counterpart, len(part))
        if stacked is None:  # It does not mix samples at the shapes of ``node``, but at these.
            apart = (part[index : index + 1] for index in range(len(part)))
            return np.concatenate([self._compute(node, operands, one) for one in apart])
        return stacked.evaluate(*self.arrays(counterpart, operands, part))

    def arrays(
        self, counterpart: Node, operands: Sequence[Stackable], part: range
    ) -> Iterator[Array]:
        """The operands of a ``counterpart`` for some samples.

        Its Constants are its own: their shapes may differ, and an improved layer may have a bias
        that the old one had not.
        """
        computed = (values for values in operands if not values.is_shared)
        for operand in counterpart.operands:
            if isinstance(operand, Constant):
                yield self.constants.get(operand, operand.value)
            else:
                yield next(computed).stack(part)


def interpret_together(
    graph: Graph, samples: Sequence[Mapping[str, Array]], listeners: Sequence[Listener]
) -> None:
    """``interpret`` a graph that ``runs_together`` on several samples: listeners see each value
    once, or stacked in parts, in the order of execution.
    """
    for feeds in samples:
        check_feeds(graph, feeds)
    for node, values in Execution(graph, (), Evaluator(samples).compute):
        for array in values.arrays:
            for listener in listeners:
                listener(node, array)


def runs_together(graph: Graph) -> bool:
    """Whether listeners may see values of several samples at once: there are no branches, whose
    values count in some samples only, and no loops, inside of which they look.
    """
    return not find_branches(graph) and not any(isinstance(node, Loop) for node in graph.nodes)


def in_groups(samples: Sequence[Sample], nbytes: int, groups: int = 1) -> list[Sequence[Sample]]:
    """Samples to run together, in so many ``groups`` at least; ``nbytes``: the size of the values
    of one sample.
    """
    size = max(1, min(MOST, len(samples) // groups, GROUP_NBYTES // max(nbytes, 1)))
    return [samples[start : start + size] for start in range(0, len(samples), size)]


def samples_together(node: Node) -> int:
    """Number of samples of a node to stack: a power of two."""
    values = [node, *filter(_is_computed, node.operands)]
    largest = max(int(value.type.nbytes) for value in values)
    fitting = min(max(STACK_NBYTES, _weights_nbytes(node)) // max(largest, 1), MOST)
    if fitting < 2 or join(node, 2) is None:
        return 1
    return 1 << (fitting.bit_length() - 1)


def _weights_nbytes(node: Node) -> int:
    """Size of the constant weights of a contraction, in bytes; 0 where there are none.  All samples
    of a stack share one reading of them."""
    weights = node.w if isinstance(node, Contraction) else None
    return weights.value.nbytes if isinstance(weights, Constant) else 0


def join(node: Node, count: int) -> Node | None:
    """The node that computes ``count`` samples stacked along axis 0; None where they may depend on
    each other.
    """
    shape = node.type.fixed_shape
    computed = [operand for operand in node.operands if _is_computed(operand)]
    if not shape or not computed or any(o.type.fixed_shape[:1] != shape[:1] for o in computed):
        return None
    if _has_own_constants(node):
        return None
    changes = node.for_samples((count * shape[0], *shape[1:]))
    if not changes:
        return None if changes is None else node
    operands = tuple(_stand_in(o, count) if _is_computed(o) else o for o in node.operands)
    return node.with_operands(operands, **changes)


def _has_own_constants(node: Node) -> bool:
    """Whether Constants have an entry for each sample along axis 0."""
    if isinstance(node, Contraction):
        return isinstance(node, Conv) and isinstance(node.residual, Constant)
    return isinstance(node, Concat) and any(isinstance(part, Constant) for part in node.parts)


def _stand_in(operand: Node, count: int) -> Input:
    first, *tail = operand.type.shape
    return Input(name=operand.name, tensor=operand.type.with_shape((count * first, *tail)))


def _is_computed(operand: Node) -> bool:
    return not isinstance(operand, Constant)

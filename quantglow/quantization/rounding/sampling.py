"""Sampling policy of calibration, and values of nodes for many samples at once.

The policy decides which samples are kept in memory, and from which rows of their data the second
moments of a layer are taken.
"""

from __future__ import annotations

import hashlib
from bisect import insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np

from quantglow.interpreter.branches import in_branches
from quantglow.interpreter.executor import peak_nbytes
from quantglow.interpreter.stacks import Stackable, Stacks
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.ops import Conv
from quantglow.ir.ops.contraction import Contraction
from quantglow.profiling.samples.feeds import Feeds
from quantglow.profiling.specials import ABSENT, NONE
from quantglow.quantization.plan.tensor_ranges import special_values
from quantglow.quantization.rounding.layer import BAND_NBYTES
from quantglow.quantization.shape_variants import VariantEvaluator
from quantglow.support.arrays import Array, content

TOGETHER_ROWS = 2048
"""Target number of result rows of one matrix product.  Samples with few rows are stacked up to it,
so that work done once for the weights serves them all."""

Item = TypeVar("Item")

MEMORY_NBYTES = 2**29
"""Maximum size of the values of all samples, in bytes.  Some 60 samples of EfficientNet-Lite0 or
ResNet-50 fit; more bring little."""

FEW_SAMPLES, MAX_NBYTES = 8, 2**30
"""Number of samples that may take more memory, and how much, in bytes.  With fewer samples no range
is chosen."""

ROWS_PER_INPUT = 4
"""Minimum number of rows for a layer's second moments, for each of its inputs.  In wide layers more
rows teach little and cost the most: neighboring pixels say much the same."""

MOMENTS_WORK = 10**9
"""Multiply-accumulates within which the second moments of a layer are taken of all rows."""

COPYING_WORK = 32
"""Cost of copying and reading one value of a row, in multiply-accumulates.  It dominates in
depthwise layers, whose rows are short."""

SAMPLES_PER_LINE = 8
"""Minimum number of samples that contribute the same line of an image, where lines are skipped to
save copying.  Lines of text differ, and few samples would tell too little of each."""

MIN_ROWS_PER_INPUT = 0.25
"""With fewer rows for each input the second moments are too uncertain: only the bias is corrected.
"""


def capacity(graph: Graph) -> int:
    """Number of samples of a float graph that memory has room for; at least one."""
    nbytes = sample_nbytes(graph)
    few = min(FEW_SAMPLES, MAX_NBYTES // nbytes)
    return max(1, few, MEMORY_NBYTES // nbytes)


def sample_nbytes(graph: Graph) -> int:
    """Memory for one sample while the float and the int8 graph are run side by side, in bytes."""
    inputs = sum(int(node.type.nbytes) for node in graph.inputs)
    # The int8 values are a quarter of the float ones.
    return max(inputs + peak_nbytes(graph) * 5 // 4, 1)


def row_stride(rows: int, group: int, k: int, samples: int) -> int:
    """Row stride for collecting second moments, given ``rows`` rows of layer data.

    ``group`` products have ``k`` inputs each; ``samples``: the number of samples of the data.
    """

    def for_work(row_work: int) -> int:
        return rows // max(ROWS_PER_INPUT * k, MOMENTS_WORK // row_work)

    copied = for_work(group * k * (k + COPYING_WORK))
    return max(1, for_work(group * k * k), min(copied, samples // SAMPLES_PER_LINE))


def samples_together(node: Any, results: int, columns_nbytes: int) -> int:
    """Number of samples to take moments of at once, so that their buffers fit half a band.

    ``results``: values that the layer gives for one sample; ``columns_nbytes``: size of its
    columns. The buffers are the columns, the input in float, and three arrays of results: as
    wanted, as they are, and the difference.
    """
    if not stacks(node):
        return 1
    inputs = node.x.type.size * results // node.type.size
    values_nbytes = 4 * (inputs + 3 * results)
    return int(max(1, BAND_NBYTES // 2 // max(columns_nbytes + values_nbytes, 1)))


@dataclass
class Spread(Generic[Item]):
    """At most ``capacity`` of the items added, at even distances: every 1st, 2nd, 4th, … one.

    >>> spread = Spread(4)
    >>> spread.extend(range(10)).items
    [0, 4, 8]
    """

    capacity: int
    items: list[Item] = field(default_factory=list)
    stride: int = 1
    count: int = 0

    def add(self, item: Item) -> None:
        """Keep the item if its turn has come."""
        index, self.count = self.count, self.count + 1
        if index % self.stride == 0 and len(self.items) == self.capacity:
            self.items, self.stride = self.items[::2], 2 * self.stride
        if index % self.stride == 0 and len(self.items) < self.capacity:
            self.items.append(item)

    def extend(self, items: Iterable[Item]) -> Spread[Item]:
        """Add all items."""
        for item in items:
            self.add(item)
        return self


@dataclass
class Reservoir:
    """At most ``capacity`` of the samples added: those whose contents have the lowest digests,
    which is as good as drawing them at random (a bottom-k sample; Cohen and Kaplan, 2007).

    So the choice depends neither on the order of the data nor on its batches, and memory does not
    grow with their number.  Another ``seed`` draws other samples.
    """

    capacity: int
    seed: int = 0
    _ranked: list[tuple[bytes, int]] = field(default_factory=list)
    _samples: dict[int, Feeds] = field(default_factory=dict)
    _count: int = 0

    @property
    def samples(self) -> list[Feeds]:
        """The samples kept, in the order in which they were added."""
        return [self._samples[index] for index in sorted(self._samples)]

    def add(self, feeds: Feeds) -> None:
        """Keep the sample if it is among the lowest."""
        insort(self._ranked, (self._digest(feeds), self._count))
        self._samples[self._count] = feeds
        self._count += 1
        if len(self._ranked) > self.capacity:
            del self._samples[self._ranked.pop()[1]]

    def extend(self, samples: Iterable[Feeds]) -> Reservoir:
        """Add all samples."""
        for feeds in samples:
            self.add(feeds)
        return self

    def _digest(self, feeds: Feeds) -> bytes:
        digest = hashlib.blake2b(str(self.seed).encode(), digest_size=16)
        for name, array in sorted(feeds.items()):
            digest.update(f"{name} {array.dtype} {array.shape}".encode())
            digest.update(content(array))
        return digest.digest()


@dataclass(frozen=True)
class SampleValues:
    """The value of a node for each sample, or the single value that all samples share.

    ``unfinished``: a contraction of which ``sums`` are the sums.  Activation and bounds are applied
    whenever the value is read, so that nothing is stored twice where the sums are wanted, too.
    """

    sums: Stacks
    unfinished: Contraction | None = None

    @property
    def is_shared(self) -> bool:
        """Whether it is one value for all samples."""
        return self.sums.is_shared

    def stack(self, part: Sequence[int]) -> Array:
        """The values for some samples, stacked along the first axis."""
        sums = self.sums.stack(part)
        return sums if self.unfinished is None else self.unfinished.finished(sums.copy())

    def of(self, sample: int) -> Array:
        """The value for one sample."""
        return self.stack([sample])


class SampleEvaluator(VariantEvaluator):
    """Evaluates nodes of a graph for all samples at once; samples run side by side.

    Values of branches that are not taken are finite here: 0 instead of NaN and Inf, except for NaN
    and Inf that the model brings itself.  Nodes need not be those of ``graph``, if they keep the
    names.
    """

    def __init__(self, graph: Graph, samples: Sequence[Feeds]) -> None:
        super().__init__(graph, samples)
        self.untaken = {node.name for node in in_branches(graph)}
        self.special = {node.name: specials for node, specials in special_values(graph).items()}

    def values(self, node: Node, operands: Sequence[SampleValues]) -> SampleValues:
        """``evaluate`` of an ``Execution``: the values of ``node`` for all samples."""
        return SampleValues(self.compute(node, operands))

    def compute(self, node: Node, operands: Sequence[Stackable]) -> Stacks:
        """The value of ``node`` for each sample, from those of its operands."""
        return super().compute(node, operands).mapped(partial(self.finite, node))

    def together(self, node: Node) -> int:
        """How many samples of a node to stack."""
        count = super().together(node)
        if isinstance(node, Contraction) and stacks(node):
            rows = int(node.type.size) // max(int(node.type.shape[-1]), 1)
            return max(count, TOGETHER_ROWS // max(rows, 1))
        return count

    def finite(self, node: Node, value: Array) -> Array:
        """A value of the node without the NaN and Inf of a branch that is not taken."""
        if node.name not in self.untaken or not node.type.dtype.is_float:
            return value
        specials = self.special.get(node.name, NONE)
        if specials & ABSENT:
            return value
        if specials:
            return np.where(np.isnan(value), np.float32(0), value)
        return np.nan_to_num(value, nan=0.0, posinf=0.0, neginf=0.0)


def stacks(node: Contraction) -> bool:
    """Whether stacked samples give the same results as one by one: all have the same weights, and
    the residual, if there is one, is computed for each.
    """
    residual = node.residual if isinstance(node, Conv) else None
    is_fixed = isinstance(node.w, Constant) and isinstance(node.b, Constant | None)
    return is_fixed and not isinstance(residual, Constant)

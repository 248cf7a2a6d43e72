"""The errors that candidate ranges of a value cause in one of its readers.

Products are computed for a part of their rows, and of many groups for a part of them, functions of
large images for a part of the lines, different ones in each sample, so that the choice costs less
than a run of the network for each sample.  Clipped values are rare, and few rows may hold none; so
the errors of the rows are multiplied by the error of all values, which the histogram knows, over
that of the rows (a ratio estimate; Cochran, Sampling Techniques, 1977, chapter 6).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from quantglow.ir.graph.kinds import Trait
from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.ops import Concat, Conv
from quantglow.ir.ops.arithmetic import quantization
from quantglow.ir.ops.binary import Binary
from quantglow.ir.ops.contraction import Contraction
from quantglow.ir.ops.native import native_ops
from quantglow.ir.ops.unary import Unary
from quantglow.ir.ops.windows import Images, conv2d
from quantglow.ir.types import ElementType
from quantglow.profiling import Histogram, Range, squared_error
from quantglow.quantization.rounding.layer import LayerProduct
from quantglow.quantization.rounding.sampling import SampleEvaluator, SampleValues
from quantglow.quantization.search.range_errors import (
    TINY,
    TOGETHER,
    Energies,
    Grids,
    energies,
    in_halves,
    products,
    relative,
)
from quantglow.support.arrays import Array
from quantglow.support.processes.workers import each

WORK = 10**8
"""Maximum number of multiply-accumulates for one product that reads a tensor, over all samples and
candidates."""

ROUNDING_WORK = 32
"""Cost of rounding one value, in multiply-accumulates."""

ELEMENTS = 2**18
"""Maximum number of results that an elementwise function computes in one call."""

LIGHT_SAMPLES = 4
"""Maximum number of samples for operators other than products."""

LIGHT_WORK = 5 * 10**6
"""Maximum number of results of one of these, over all samples and candidates, if it computes each
line from the same lines of its operands; others are computed whole."""

MIN_ROWS = 8


@dataclass(frozen=True)
class ReaderErrors:
    """Errors on the samples of ``evaluator``; ``histograms`` of all values, by name."""

    evaluator: SampleEvaluator
    histograms: Mapping[str, Histogram]

    def of(
        self,
        operand: Node,
        reader: Node,
        values: Mapping[Node, SampleValues],
        types: list[ElementType],
        results: SampleValues,
    ) -> Array:
        """[2, candidates]: relative errors of a reader, with candidates of one of its operands."""
        errors = np.zeros((2, len(types)))
        if isinstance(reader, Contraction) and operand is reader.x:
            errors += self._of_product(operand, reader, values[operand], types)
        if not isinstance(reader, Contraction) or _residual(reader) is operand:
            errors += self._of_result(operand, reader, values, types, results)
        return errors

    def _of_product(
        self, x: Node, reader: Contraction, values: SampleValues, types: list[ElementType]
    ) -> Array:
        """[2, candidates]: relative errors of ``x @ w``, for a part of the rows of each sample."""
        product = LayerProduct(reader)
        group, k, outputs = product.shape
        weights = product.matrix(reader.w.value.astype(np.float32))  # type: ignore[attr-defined]
        count = len(self.evaluator.samples)
        row = group * k * (outputs + ROUNDING_WORK) * len(types) * count
        rows = max(MIN_ROWS, WORK // row)

        grids = Grids.of(types)
        is_depthwise = isinstance(reader, Conv) and reader.depthwise
        of_lines = is_depthwise and native_ops() is not None

        def read_part(sample: int) -> Array:
            variant: Any = self.evaluator.counterpart(reader, sample)
            read = _some_lines if of_lines else _some_rows
            return read(LayerProduct(variant), values.of(sample), rows, sample / count)

        def measure(part: range) -> tuple[Energies, Array]:
            alike = defaultdict[tuple[int, ...], list[Array]](list)
            for sample in part:
                read = read_part(sample)
                alike[read.shape].append(read)
            pairs = [of_some(np.stack(some), part.start) for some in alike.values()]
            return Energies.sum([one for one, _ in pairs]), np.sum([s for _, s in pairs], axis=0)

        def of_some(some: Array, first: int) -> tuple[Energies, Array]:
            if of_lines:
                return _of_lines(self.evaluator.counterpart(reader, first), some, grids)
            groups = slice(first % apart, None, apart)
            columns, some_weights = some[:, groups], weights[groups]
            errors, squares = grids.measure(columns)
            changes = products(errors.reshape(-1, *columns.shape[1:]), some_weights)
            changes = changes.reshape(len(types), len(some), *changes.shape[1:])
            return Energies.of(products(columns, some_weights), changes), squares / columns[0].size

        apart = groups_apart(group, MIN_ROWS * row)
        parts = self._parts(count, apart == 1)
        measures = each(measure, parts)
        rounding = sum((part for _, part in measures), np.zeros(len(types)))
        sums = relative(parts, [one for one, _ in measures])
        return sums * self._ratios(x, types, rounding / count)

    def _parts(self, count: int, together: bool) -> list[range]:
        """``in_halves``; one by one where samples have other shapes."""
        kinds = {id(self.evaluator.alike(sample)) for sample in range(count)}
        return in_halves(count, TOGETHER if together and len(kinds) == 1 else 1)

    def _ratios(self, x: Node, types: list[ElementType], rounding: Array) -> Array:
        """For each candidate the mean square error of all values over that of the sampled ones."""
        if x.name not in self.histograms:
            return np.ones(len(types))
        histogram = self.histograms[x.name]
        whole = np.array([squared_error(histogram, _reach(element)) for element in types])
        return np.where(rounding > TINY, whole / np.maximum(rounding, TINY), 1.0)

    def _of_result(
        self,
        x: Node,
        reader: Node,
        values: Mapping[Node, SampleValues],
        types: list[ElementType],
        results: SampleValues,
    ) -> Array:
        """[2, candidates]: relative errors of the reader's results, in a part of the lines."""
        count = min(LIGHT_SAMPLES, len(self.evaluator.samples))
        exact = [results.of(sample) for sample in range(count)]
        work = sum(result.size for result in exact) * len(types)
        every = max(1, work // LIGHT_WORK) if _is_local(reader) else 1

        grids = Grids.of(types)

        def measure(one: range) -> tuple[Energies, Array]:
            sample = one.start
            apart = min(every, exact[sample].shape[1]) if every > 1 else 1
            lines = slice(sample * apart // count, None, apart)
            value, target = (_part(v, lines) for v in (values[x].of(sample), exact[sample]))
            errors, squares = grids.measure(value)
            rounding = squares / max(value.size, 1)
            sums = squares
            if not isinstance(reader, Contraction):
                errors += value
                sums = self._errors(reader, values, x, errors, target, sample, lines)
            return Energies(_variation(target), sums), rounding

        parts = [range(sample, sample + 1) for sample in range(count)]
        measures = each(measure, parts)
        sums = relative(parts, [one for one, _ in measures])
        if every == 1:
            return sums
        return sums * self._ratios(x, types, np.mean([part for _, part in measures], axis=0))

    def _errors(
        self,
        reader: Node,
        operands: Mapping[Node, SampleValues],
        x: Node,
        values: Array,
        target: Array,
        sample: int,
        lines: slice,
    ) -> Array:
        """[candidates]: energies of the errors of some lines of a reader's result for one sample,
        with ``values`` [candidates, …] of ``x``.  Elementwise functions take several at once.
        """
        is_function = reader.has(Trait.ELEMENTWISE) and values[0].shape == target.shape
        once = max(1, ELEMENTS // max(target.size, 1)) if is_function else 1
        if once == 1:
            some = [self._compute(reader, operands, {x: x1}, sample, lines)[None] for x1 in values]
        else:
            starts = range(0, len(values), once)
            batches = [values[start : start + once] for start in starts]
            some = [self._compute(reader, operands, {x: xs}, sample, lines) for xs in batches]
        errors = [energies(_as_rows(results - target), centered=False) for results in some]
        return np.concatenate(errors)

    def _compute(
        self,
        reader: Node,
        operands: Mapping[Node, SampleValues],
        changed: Mapping[Node, Array],
        sample: int,
        lines: slice,
    ) -> Array:
        """Some lines of the reader's result for one sample; ``changed``: lines of an operand."""
        variant = self.evaluator.counterpart(reader, sample)
        one = range(sample, sample + 1)
        arrays = self.evaluator.arrays(variant, [operands[o] for o in reader.operands], one)
        pairs = zip(reader.operands, arrays, strict=True)
        parts = (changed[o] if o in changed else _part(array, lines) for o, array in pairs)
        with np.errstate(all="ignore"):
            return self.evaluator.finite(reader, variant.evaluate(*parts))


def groups_apart(group: int, work: int) -> int:
    """Distance of the groups of a product that one sample computes, if all of them take ``work``
    over all samples; the next sample computes the next ones.
    """
    return min(-(-work // WORK), group)


def _reach(element: ElementType) -> Range:
    """The reals from the lowest to the highest integer."""
    params, (low, high) = quantization(element), element.dtype.limits
    return Range(
        params.scale * (low - params.zero_point), params.scale * (high - params.zero_point)
    )


def _is_local(reader: Node) -> bool:
    """Whether a node computes each line of an image from the same lines of its operands."""
    images = [o for o in reader.operands if not isinstance(o, Constant)]
    lines = reader.type.fixed_shape[:2]
    alike = all(o.type.rank == 4 and o.type.fixed_shape[:2] == lines for o in images)
    if isinstance(reader, Concat):
        return alike and reader.axis > 1
    return alike and isinstance(reader, Unary | Binary | Contraction)


def _part(value: Array, lines: slice) -> Array:
    """Some lines of an image; an array with a single line as it is."""
    return value[:, lines] if value.ndim == 4 and value.shape[1] > 1 else value


def _variation(values: Array) -> float:
    """The sum of squares of the distances from the mean; of a single value its square."""
    whole = float(energies(_as_rows(values[None]), centered=False)[0])
    if values.size < 2:
        return whole
    return whole - float(values.sum(dtype=np.float64)) ** 2 / values.size


def _as_rows(values: Array) -> Array:
    """[candidates, 1, values, 1] of [candidates, …]"""
    return values.reshape(len(values), 1, -1, 1)


def _residual(reader: Contraction) -> Node | None:
    return reader.residual if isinstance(reader, Conv) else None


def _of_lines(reader: Any, lines: Array, grids: Grids) -> tuple[Energies, Array]:
    """``_of_product`` of a depthwise layer for the input ``lines`` [samples, …] of some of its own,
    by native code.
    """
    errors, squares = grids.measure(lines)
    weights = reader.w.value.astype(np.float32)
    images = np.concatenate([lines[None], errors]).reshape(-1, *lines.shape[2:])
    sums = conv2d(
        Images.of(images), weights, (1, reader.strides[1]), reader.dilations, reader.group
    )
    rows = sums.reshape(len(errors) + 1, len(lines), 1, -1, sums.shape[-1])
    return Energies.of(rows[0], rows[1:]), squares / max(lines[0].size, 1)


def _some_lines(product: LayerProduct, value: Array, rows: int, offset: float) -> Array:
    """float32 [lines, span, W, C]: what some lines of a Conv's result read, about ``rows`` pixels,
    as ``_some_rows`` has them.
    """
    padded, (stride, _), _ = product.thin_rows(value, 1, 0)
    node: Any = product.node
    span = node.dilations[0] * (node.w.type.shape[0] - 1) + 1
    images, height, width, _ = node.type.shape
    apart = max(1, height // max(1, min(height, -(-rows // max(images * width, 1)))))
    tops = range(int(offset * apart) * stride, height * stride, apart * stride)
    return np.concatenate([padded[:, top : top + span] for top in tops])


def _some_rows(product: LayerProduct, value: Array, rows: int, offset: float) -> Array:
    """float32 columns [G, about ``rows``, K], spread over the image.  ``offset``, from 0 to 1, is
    the position of the first one between two lines, and between two of their rows.
    """
    spatial = value.shape[1] if value.ndim == 4 else 1
    per_line = value.shape[0] * (value.shape[2] if value.ndim == 4 else 1)
    lines = max(1, min(spatial, -(-4 * rows // max(per_line, 1))))
    apart = max(1, spatial // lines)
    bands = product.bands(value, every=apart, first=int(offset * apart))
    columns = np.concatenate([band[0] for band in bands], axis=1)
    every = max(1, columns.shape[1] // rows)
    return np.ascontiguousarray(columns[:, int(offset * every) :: every])

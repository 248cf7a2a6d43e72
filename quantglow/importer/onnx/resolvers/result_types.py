"""Types of results of External nodes: those of ai.onnx.ml, and those at free sizes.

ONNX has no inference for some operators of ai.onnx.ml: ``RULES`` has their types.

ONNX infers shapes from integers only.  So a node is inferred at many sizes of its operands, and
each size of a result becomes the formula that gives all of these: a constant,
``m*floor((a*u+c)/k)+r`` of one size of an operand, or a product or a sum of such.  A formula that
is wrong elsewhere is noticed when the node runs: its arrays are compared with their types.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
import onnx

from quantglow.importer.onnx.domains import ML
from quantglow.importer.onnx.nodes.values import (
    KnownSizes,
    ObjectValue,
    with_inner_sizes,
)
from quantglow.ir.symbolic.expression import Expression, number
from quantglow.ir.symbolic.size import Dim, Size, size
from quantglow.ir.types import DType, TensorType
from quantglow.support.arrays import Array
from quantglow.support.classes import cached_property

Attributes = Mapping[str, Any]
Rule = Callable[[Sequence[TensorType], Attributes], tuple[TensorType, ...]]
"""Operand types and attributes -> the types of the results; none where they cannot be told."""

PERIOD = 8
"""Maximum step of a window in a formula."""


@dataclass(frozen=True)
class ResultType:
    """The type of a result; None for sizes that are known late, when the node has run.

    ``declared``: the ONNX type of a sequence, optional or map, ``dims`` the sizes of the tensors in
    it, where None is an open one.
    """

    dtype: DType
    dims: tuple[Dim | None, ...]
    declared: onnx.TypeProto | None = None

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.dims)


Types = Mapping[str, ResultType]
Sizing = Mapping[Expression, int]
"""The integers that stand for the sizes of the operands."""

Formula = Callable[[Mapping[Expression, Expression]], Expression]
"""A size of a result from the sizes of the operands."""


def _same_shape(operands: Sequence[TensorType], attributes: Attributes) -> tuple[TensorType, ...]:
    """A float for each element."""
    return (TensorType(DType.F32, operands[0].shape),)


def _same_type(operands: Sequence[TensorType], attributes: Attributes) -> tuple[TensorType, ...]:
    return (operands[0],)


def _regression(operands: Sequence[TensorType], attributes: Attributes) -> tuple[TensorType, ...]:
    """A float for each row and target."""
    targets = int(attributes.get("n_targets", attributes.get("targets", 1)))
    return _in_rows(operands, (DType.F32, (targets,)))


def _columns_at(operands: Sequence[TensorType], attributes: Attributes) -> tuple[TensorType, ...]:
    """The columns of the first operand that the second one chooses; a vector is a row."""
    x, chosen = operands
    return (TensorType(x.dtype, (*(x.shape[:-1] or (1,)), chosen.size)),)


def columns(operands: Sequence[TensorType], attributes: Attributes) -> tuple[TensorType, ...]:
    """Stated columns of all operands, side by side."""
    return _in_rows(operands, (DType.F32, (sum(attributes.get("inputdimensions", ())),)))


def _trees(operands: Sequence[TensorType], attributes: Attributes) -> tuple[TensorType, ...]:
    """A label and a score of each class for each row."""
    return _label(operands, len(attributes.get("classlabels_int64s", ())), 0)


def _support_vectors(
    operands: Sequence[TensorType], attributes: Attributes
) -> tuple[TensorType, ...]:
    """A label, and a score of each class, or of each pair of classes without probabilities."""
    classes = len(attributes.get("classlabels_ints", ()))
    is_paired = classes > 2 and not attributes.get("prob_a") and "vectors_per_class" in attributes
    return _label(operands, classes, classes * (classes - 1) // 2 if is_paired else 0)


def _label(operands: Sequence[TensorType], classes: int, scores: int) -> tuple[TensorType, ...]:
    """int64 labels and scores, as many as classes where none are stated."""
    if classes < 2:
        return ()
    return _in_rows(operands, (DType.I64, ()), (DType.F32, (scores or classes,)))


def _in_rows(
    operands: Sequence[TensorType], *results: tuple[DType, tuple[int, ...]]
) -> tuple[TensorType, ...]:
    """Results with a first axis for the rows of the operand."""
    if operands[0].rank != 2:
        return ()
    return tuple(TensorType(dtype, (operands[0].shape[0], *dims)) for dtype, dims in results)


RULES: dict[str, Rule] = {
    "ArrayFeatureExtractor": _columns_at,
    "FeatureVectorizer": columns,
    "Imputer": _same_type,
    "LinearRegressor": _regression,
    "Normalizer": _same_shape,
    "SVMClassifier": _support_vectors,
    "SVMRegressor": _regression,
    "Scaler": _same_shape,
    "TreeEnsembleClassifier": _trees,
    "TreeEnsembleRegressor": _regression,
}


def ml_types(proto: onnx.NodeProto, operands: Sequence[TensorType]) -> dict[str, TensorType]:
    """The types of the node's named results, as far as a rule tells them."""
    if proto.domain != ML or proto.op_type not in RULES or not operands:
        return {}
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in proto.attribute}
    types = RULES[proto.op_type](operands, attributes)
    return {name: kind for name, kind in zip(proto.output, types, strict=False) if name}


def free_sizes(node: onnx.ModelProto, values: Mapping[str, Any]) -> list[Size]:
    """The distinct free sizes of the operands of a model of one node."""
    sizes = (size for info in node.graph.input for size in _leaf_sizes(values[info.name]))
    return list({size.expression: size for size in sizes if isinstance(size, Size)}.values())


def _leaf_sizes(value: Any) -> Iterator[Any]:
    """The sizes of an operand, and its elements if these are sizes."""
    if isinstance(value, KnownSizes):
        yield from value.array.reshape(-1).tolist()
    elif isinstance(value, ObjectValue):
        yield from value.sizes
    else:
        yield from getattr(value, "type", value).shape


def at_sizes(node: onnx.ModelProto, values: Mapping[str, Any], sizes: Sizing) -> onnx.ModelProto:
    """The model of one node with integers for the free sizes of its operands."""
    model = onnx.ModelProto()
    model.CopyFrom(node)
    del model.graph.input[:]
    for info in node.graph.input:
        value = values[info.name]
        if isinstance(value, KnownSizes):
            array = _integers(value.array, sizes)
            model.graph.initializer.append(onnx.numpy_helper.from_array(array, info.name))
        elif isinstance(value, ObjectValue) and value.shape is None:
            inner = [None if n is None else _integer(n, sizes) for n in value.inner]
            declared = info.type if value.is_late else with_inner_sizes(info.type, inner)
            model.graph.input.append(onnx.ValueInfoProto(name=info.name, type=declared))
        else:
            shape = [_integer(size, sizes) for size in _leaf_sizes(value)]
            element = info.type.tensor_type.elem_type
            model.graph.input.append(onnx.helper.make_tensor_value_info(info.name, element, shape))
    return model


def _integers(array: Array, sizes: Sizing) -> Array:
    flat = [_integer(size, sizes) for size in array.reshape(-1).tolist()]
    return np.array(flat, np.int64).reshape(array.shape)


def _integer(size: Any, sizes: Sizing) -> int:
    return sizes[size.expression] if isinstance(size, Size) else int(size)


def free_types(sizes: Sequence[Size], types_at: Callable[[Sizing], Types]) -> dict[str, ResultType]:
    """Types of the results of a node whose operands have free ``sizes``, as far as formulas are
    found; ``_types_at`` infers them for integers."""
    trials = _Trials({size.expression: size.hint for size in sizes}, types_at)
    types: dict[str, ResultType] = {}
    for name, kind in trials.first.items():
        axes = [axis for axis, dim in enumerate(kind.dims) if dim is not None]
        formulas = {axis: trials.formula(name, axis) for axis in axes}
        solved = {axis: formula for axis, formula in formulas.items() if formula is not None}
        if len(solved) == len(axes) or kind.declared is not None:
            same = {expression: expression for expression in trials.hints}
            shape = {axis: size(each(same), sizes[0].guards) for axis, each in solved.items()}
            types[name] = replace(kind, dims=tuple(map(shape.get, range(kind.rank))))
    return types


@dataclass(frozen=True, eq=False)
class _Trials:
    """Types of the results at the hints, at other values of each size alone, and of all sizes."""

    hints: Sizing
    types_at: Callable[[Sizing], Types]

    @cached_property
    def first(self) -> Types:
        """The types at the hints."""
        return self.types_at(self.hints)

    @cached_property
    def single(self) -> Mapping[Expression, list[Types]]:
        """The types where one size is larger, by up to two periods."""
        return {
            e: [self.types_at({**self.hints, e: hint + more}) for more in range(2 * PERIOD + 1)]
            for e, hint in self.hints.items()
        }

    @cached_property
    def others(self) -> list[tuple[Sizing, Types]]:
        """Other sizes, and the types at them."""
        steps = ((3, 2), (7, 5), (1, 11))
        sizings = [
            {e: hint + a + b * i for i, (e, hint) in enumerate(self.hints.items())}
            for a, b in steps
        ]
        return [(sizes, self.types_at(sizes)) for sizes in sizings]

    def formula(self, name: str, axis: int) -> Formula | None:
        """The formula of one size of a result; None where none is found."""
        runs = {e: [_size(types, name, axis) for types in run] for e, run in self.single.items()}
        checks = [(sizes, _size(types, name, axis)) for sizes, types in self.others]
        if any(None in run for run in runs.values()) or any(size is None for _, size in checks):
            return None
        first = _size(self.first, name, axis)
        assert first is not None, "an axis of a size that is inferred"
        varying = {e: run for e, run in runs.items() if any(size != first for size in run)}
        for formula in self.candidates(first, varying):
            numbers = (({e: number(n) for e, n in s.items()}, size) for s, size in checks)
            if all(formula(values).constant == size for values, size in numbers):
                return formula
        return None

    def candidates(
        self, first: int, varying: Mapping[Expression, Sequence[int | None]]
    ) -> Iterator[Formula]:
        """Formulas that give the size at the hints."""
        if not varying:
            yield lambda values: number(first)
            return
        windows = [_window(e, self.hints[e], run) for e, run in varying.items()]
        solved = [formula for formula in windows if formula is not None]
        if len(solved) == len(windows):
            yield lambda values: _add(first, [formula(values) for formula in solved])
        product, all_sizes = 1, list(varying)
        for e in all_sizes:
            product *= self.hints[e]
        if first % product == 0:
            factor = number(first // product)
            yield lambda values: reduce(lambda a, e: a * values[e], all_sizes, factor)


def _size(types: Types, name: str, axis: int) -> int | None:
    """A size of a result; None where it is not inferred, or the result has other axes."""
    kind = types.get(name)
    dim = None if kind is None or kind.rank <= axis else kind.dims[axis]
    return None if dim is None else int(dim)


def _add(first: int, parts: Sequence[Expression]) -> Expression:
    """The sum of the changes from ``first``."""
    return reduce(lambda a, b: a + b - number(first), parts)


def _window(e: Expression, hint: int, run: Sequence[int | None]) -> Formula | None:
    """``m*floor((a*u+c)/k)+r`` for consecutive sizes ``u`` from ``hint`` on; None where no such
    formula gives all."""
    sizes = [size for size in run if size is not None]
    factor = math.gcd(*(size - sizes[0] for size in sizes)) or 1
    remainder = sizes[0] % factor
    inner = _steps([size // factor for size in sizes], hint)
    if inner is None:
        return None
    m, r, (a, c, k) = number(factor), number(remainder), map(number, inner)
    return lambda values: m * ((a * values[e] + c) // k) + r


def _steps(sizes: Sequence[int], hint: int) -> tuple[int, int, int] | None:
    """``a``, ``c`` and ``k`` of ``floor((a*u+c)/k)``."""
    for step in range(1, PERIOD + 1):
        rises = {after - before for before, after in zip(sizes, sizes[step:], strict=False)}
        if len(rises) == 1:
            rise = rises.pop()
            lows = [step * size - rise * (hint + i) for i, size in enumerate(sizes)]
            if max(lows) < min(lows) + step:
                return rise, max(lows), step
    return None

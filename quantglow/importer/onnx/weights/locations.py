"""Locations of tensors in the file of a model, also of those equal up to factors.

Folding a normalization into a convolution multiplies its output channels, equalization its input
channels, and codes of int8 have a scale for each output channel.  So a tensor of a model is often

    tensor[i, j, ...] ~ constant[i, j, ...] * f0[i] * f1[j] * ...

with factors that are guessed from the signs and logarithms of the ratios, to which each axis adds
its own; then least squares finds those of one axis after the other.  Factors that float32 cannot
hold fit nothing.

==================  =====================================  =========================================
place               what the file has of a tensor          the tensor
==================  =====================================  =========================================
``graph``           nothing                                a constant of the graph, transposed
``graph``,          float32 factors for each index of      the same without its scales, times the
``scale``          each axis                              factors
``graph``,          the same, then int8                    the same, so many units in the last place
``exact``                                                  further
``graph``,          nothing                                a constant of uint8 of the graph
``codes``
``axis``            int8 codes, then float32 scales of an  codes times scales
                    axis
==================  =====================================  =========================================
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from quantglow.ir.graph.node import Constant
from quantglow.support.arrays import Array
from quantglow.support.pages import LEAST_NBYTES, release_pages

Factors = list[Array]
"""float32, for each axis of a tensor."""

MOST_STEPS = 3
"""Further apart, a constant of int8 was not rounded from a tensor."""

MOST_ULPS = 127
"""Units in the last place by which factors may miss a tensor that is to come back exactly."""

NEAR = 1e-4
"""Relative error of factors that may be exact but for such units."""

ROUNDS = 4
"""Passes over all axes; the error falls at least fivefold in each."""

GLANCE, ENOUGH = 8, 64
"""Indices of each axis that tell most pairs of arrays apart, and from which factors are found."""

MOSTLY = 0.9
"""Share of elements that are near where a glance finds arrays alike, and of those with a sign."""

LEAST_ELEMENTS = 4
"""Elements for each factor: with fewer, factors fit anything."""

Nearness = Callable[[Array, Array, Factors], Array]
"""(tensor, base, factors) -> for each element whether the factors are right."""

MOST_AXES = 4
"""Maximum number of axes of tensors that are looked for in all their layouts."""

LIKELY = frozenset({(2, 3, 1, 0), (2, 1, 0), (0, 1), (1, 0)})
"""Layouts of most weights: they are tried first."""

Place = dict[str, Any]
Places = dict[str, Place]
"""Tensor name -> where it is; as ``json`` writes it."""


@dataclass(frozen=True)
class StoredTensor:
    """The place of a tensor, and what the model's file has of it."""

    place: Place
    data: bytes = b""


@dataclass(frozen=True)
class GraphConstants:
    """The constants of a graph."""

    by_name: Mapping[str, Constant]
    by_size: Mapping[int, Sequence[Constant]]

    @staticmethod
    def of(constants: Iterable[Constant]) -> GraphConstants:
        """All of these."""
        by_name = {constant.name: constant for constant in constants}
        by_size: dict[int, list[Constant]] = defaultdict(list)
        for constant in by_name.values():
            by_size[constant.value.size].append(constant)
        return GraphConstants(by_name, by_size)

    def pairs(self, array: Array, dtype: type) -> Iterator[TensorMatch]:
        """The layouts of a tensor, each beside the constants of a type that have its size."""
        fitting = [c for c in self.by_size.get(array.size, ()) if c.value.dtype == dtype]
        for perm in _orders(array) if fitting else ():
            for constant in fitting:
                yield TensorMatch(array.transpose(perm), constant, perm)
                if array.nbytes >= LEAST_NBYTES:
                    release_pages()


@dataclass(frozen=True)
class TensorMatch:
    """A tensor in a layout, and a constant."""

    moved: Array
    constant: Constant
    perm: tuple[int, ...]

    @property
    def place(self) -> Place:
        """The place of the tensor if it is that constant."""
        return {"graph": self.constant.name, "perm": list(self.perm)}

    def exact(self) -> StoredTensor | None:
        """The place of a tensor that the constant is, bit for bit, after factors at most."""
        if _agree(self.moved, self.constant.value.reshape(-1), None):
            return StoredTensor(self.place)
        fit = exact_factors(self.moved, self.constant.value.reshape(self.moved.shape))
        if fit is None:
            return None
        factors, ulps = fit
        return StoredTensor({**self.place, "exact": True}, floats(factors) + ulps.tobytes())

    def rounded(self) -> StoredTensor | None:
        """The place of a tensor that the constant of int8 was rounded from."""
        values, steps = (
            a.reshape(-1) for a in (_reals(self.constant), _quantization_steps(self.constant))
        )
        if _agree(self.moved, values, MOST_STEPS * steps):
            return StoredTensor(self.place)
        codes = self.constant.value.reshape(self.moved.shape).astype(np.float32)
        factors = rounded_factors(self.moved, codes)
        return (
            None
            if factors is None
            else StoredTensor({**self.place, "scaled": True}, floats(factors))
        )


def floats(arrays: Iterable[Array]) -> bytes:
    """Little-endian float32, one array after the other."""
    return b"".join(array.astype("<f4").tobytes() for array in arrays)


def exact_place(array: Array, constants: GraphConstants) -> StoredTensor | None:
    """The place of the tensor in the graph, None if it has none."""
    return next(filter(None, (pair.exact() for pair in constants.pairs(array, np.float32))), None)


def rounded_place(array: Array, constants: GraphConstants) -> StoredTensor:
    """The constant of int8 that was rounded from a tensor, else codes of its own."""
    match = next(filter(None, (pair.rounded() for pair in constants.pairs(array, np.int8))), None)
    if match is not None:
        return match
    errors = [np.square(array - _with_codes(array, axis)).sum() for axis in range(array.ndim)]
    axis = int(np.argmin(errors))
    return StoredTensor(
        {"axis": axis},
        _channel_codes(array, axis).tobytes() + floats([_channel_scales(array, axis)]),
    )


def codes_place(codes: Array, constants: GraphConstants) -> StoredTensor | None:
    """The constant of uint8 that a tensor of packed codes is, None if there is none."""
    for constant in constants.by_size.get(codes.size, ()):
        value = constant.value
        if value.dtype == np.uint8 and np.array_equal(value.reshape(-1), codes.reshape(-1)):
            return StoredTensor({"graph": constant.name, "codes": True})
    return None


def codes_of_graph(dims: Sequence[int], place: Place, constants: Mapping[str, Constant]) -> Array:
    """Packed codes that the graph has.  Raises ``KeyError`` or ``ValueError``."""
    value = constants[place["graph"]].value
    if value.dtype != np.uint8 or value.size != math.prod(dims):
        raise ValueError(f"its codes are not the constant {place['graph']!r}")
    return value.reshape(tuple(dims))


def _orders(array: Array) -> Iterable[tuple[int, ...]]:
    """Orders of the axes in a layout of weights, likely ones first."""
    axes = tuple(range(array.ndim))
    if array.ndim > MOST_AXES:
        return [axes]
    return sorted(itertools.permutations(axes), key=lambda perm: perm not in LIKELY)


def _agree(moved: Array, flat: Array, allowed: Array | None) -> bool:
    """Whether a tensor equals other elements, each up to what is allowed (None: its bits)."""
    if allowed is None:
        return _same_bits(moved, flat)
    few = min(64, flat.size)
    for count in (few, flat.size):
        mine, other = moved.reshape(-1)[:count], flat[:count]
        if not (np.abs(mine - other) <= allowed[:count]).all():
            return False
    return True


def _same_bits(moved: Array, flat: Array) -> bool:
    """Whether a tensor, in any strides, has the bits of other elements; row by row, so that none
    is copied whole."""
    rows = moved if moved.ndim > 1 else moved.reshape(1, -1)
    others = flat.reshape(rows.shape)
    return all(row.tobytes() == other.tobytes() for row, other in zip(rows, others, strict=True))


def content(dims: Sequence[int], stored: StoredTensor, constants: Mapping[str, Constant]) -> Array:
    """The elements of a tensor, float32.  Raises ``KeyError``, ``TypeError`` or ``ValueError``."""
    if "graph" in stored.place:
        return _from_graph(dims, stored, constants[stored.place["graph"]])
    codes, scales = codes_in(dims, stored)
    return np.asarray(codes * _along(scales, int(stored.place["axis"]), len(dims)), np.float32)


def codes_in(dims: Sequence[int], stored: StoredTensor) -> tuple[Array, Array]:
    """The codes and scales that the model's file has of a tensor.  Raises as ``content`` does."""
    axis, size = int(stored.place["axis"]), math.prod(dims)
    if not 0 <= axis < len(dims) or len(stored.data) != size + 4 * dims[axis]:
        raise ValueError("its codes are not whole")
    codes = np.frombuffer(stored.data[:size], np.int8).reshape(dims)
    return codes, np.frombuffer(stored.data[size:], "<f4")


def _from_graph(dims: Sequence[int], stored: StoredTensor, constant: Constant) -> Array:
    """The elements of a tensor that the graph has.  Raises as ``content`` does."""
    place, perm = stored.place, [int(axis) for axis in stored.place["perm"]]
    if sorted(perm) != list(range(len(dims))) or constant.value.size != math.prod(dims):
        raise ValueError(f"it is not the constant {constant.name!r}")
    has_factors = "scaled" in place or "exact" in place
    shape = [dims[axis] for axis in perm]
    moved = (_real_values(constant) if has_factors else _reals(constant)).reshape(shape)
    if has_factors:
        ulps_nbytes = moved.size if "exact" in place else 0
        if len(stored.data) != 4 * sum(shape) + ulps_nbytes:
            raise ValueError("its factors are not whole")
        factors = np.frombuffer(stored.data[: 4 * sum(shape)], "<f4")
        moved = scale(moved, np.split(factors, np.cumsum(shape[:-1])))
        if ulps_nbytes:
            ulps = np.frombuffer(stored.data[-ulps_nbytes:], np.int8).reshape(shape)
            moved = (integers(moved) + ulps).astype(np.int32).view(np.float32)
    return np.ascontiguousarray(moved.transpose(np.argsort(perm)))


def _real_values(constant: Constant) -> Array:
    """The elements of a constant without scales, as float32.  Raises ``ValueError``."""
    _reals(constant)
    return constant.value.astype(np.float32)


def _reals(constant: Constant) -> Array:
    """The real values of a constant, as float32.  Raises ``ValueError`` for other types."""
    if constant.type.quant is None and constant.value.dtype == np.float32:
        return constant.value
    if constant.value.dtype != np.int8:
        raise ValueError(f"constant {constant.name!r} is {constant.type}")
    return np.asarray(constant.value * _quantization_steps(constant), np.float32)


def _quantization_steps(constant: Constant) -> Array:
    """The scale of each element."""
    quant, shape = constant.type.quant, constant.value.shape
    if quant is None:
        return np.ones(shape, np.float32)
    scales = np.asarray(quant.scales, np.float32)
    axis = quant.axis
    return np.broadcast_to(scales if axis is None else _along(scales, axis, len(shape)), shape)


def _along(vector: Array, axis: int, rank: int) -> Array:
    """The vector along one axis of a tensor."""
    return vector.reshape([-1 if i == axis else 1 for i in range(rank)])


def _channel_scales(array: Array, axis: int) -> Array:
    """float32 [n]: the largest magnitude is 127 steps."""
    others = tuple(i for i in range(array.ndim) if i != axis)
    reach = np.abs(array).max(axis=others).astype(np.float32)
    return np.asarray(np.where(reach > 0, reach / np.float32(127), 1), np.float32)


def _channel_codes(array: Array, axis: int) -> Array:
    """int8, with a scale for each index of an axis."""
    scales = _along(_channel_scales(array, axis), axis, array.ndim)
    return np.clip(np.rint(array / scales), -127, 127).astype(np.int8)


def _with_codes(array: Array, axis: int) -> Array:
    """The tensor as its codes have it."""
    scales = _along(_channel_scales(array, axis), axis, array.ndim)
    return np.asarray(_channel_codes(array, axis) * scales, np.float32)


@np.errstate(over="ignore", under="ignore", invalid="ignore")
def rounded_factors(target: Array, codes: Array) -> Factors | None:
    """Factors with which codes of int8, in the layout of a tensor, are that up to rounding."""

    def are_near(target: Array, codes: Array, factors: Factors) -> Array:
        steps = np.abs(scale(np.ones(codes.shape, np.float32), factors))
        return np.asarray(np.abs(target - scale(codes, factors)) <= MOST_STEPS * steps)

    return _find_factors(target, codes, are_near)


@np.errstate(over="ignore", under="ignore", invalid="ignore")
def exact_factors(target: Array, values: Array) -> tuple[Factors, Array] | None:
    """Factors with which float32 values, in the layout of a tensor, are that, and by how many units
    in the last place (int8) they miss it.
    """

    def are_near(target: Array, values: Array, factors: Factors) -> Array:
        errors = np.abs(target - scale(values, factors))
        return np.asarray(errors <= NEAR * np.abs(target))

    factors = _find_factors(target, values, are_near)
    if factors is None:
        return None
    ulps = integers(target) - integers(scale(values, factors))
    return (factors, ulps.astype(np.int8)) if np.abs(ulps).max() <= MOST_ULPS else None


def _find_factors(target: Array, base: Array, are_near: Nearness) -> Factors | None:
    """Factors with ``target ~ base * factors``, if there are any."""
    if LEAST_ELEMENTS * sum(target.shape) > target.size:
        return None
    part = np.ix_(*(_spread(size, GLANCE) for size in target.shape))
    few = target[part], base[part]
    if are_near(*few, _fit(*few)).mean() < MOSTLY:
        return None
    factors = _fit(target, base)
    return factors if are_near(target, base, factors).all() else None


def _fit(target: Array, base: Array) -> Factors:
    """Factors of the base whose reciprocals, as factors of the target, give the least squares.

    Rounding is an error of the base: where it is large, the factors for the base that give the
    least squares are too small.
    """
    parts = _axis_indices(target.shape)
    pairs = [(target[part], base[part]) for part in parts]
    estimates = [_guess(*pair, axis) for axis, pair in enumerate(pairs)]
    some = [_spread(size, ENOUGH) for size in target.shape]
    # Alternating least squares: with the factors of all other axes fixed, those of one axis are
    # independent regressions through 0, sum(x * y) / sum(x * x).
    for _ in range(ROUNDS):
        for axis in range(target.ndim):
            others = [estimates[i][indices] for i, indices in enumerate(some)]
            others[axis] = np.ones(1)
            predictor, response = scale(pairs[axis][0], others), pairs[axis][1]
            power, fits = (
                _over_others(predictor * predictor, axis),
                _over_others(predictor * response, axis),
            )
            estimates[axis] = np.divide(fits, power, where=power > 0, out=np.ones_like(fits))
    return [_reciprocals(factors).astype(np.float32) for factors in estimates]


def _guess(target: Array, base: Array, axis: int) -> Array:
    """The factors of one axis, but for a magnitude that they have in common."""
    is_usable = (target != 0) & (base != 0)
    ratios = np.divide(base, target, where=is_usable, out=np.ones(base.shape))
    is_usable &= np.isfinite(ratios) & (ratios != 0)
    ratios[~is_usable] = 1
    counts = np.maximum(_over_others(is_usable, axis), 1)
    logs = _over_others(np.log(np.abs(ratios)), axis) / counts
    signs = _over_others(np.sign(ratios) * is_usable, axis) / counts
    factors: Array = np.where(signs < -MOSTLY, -1.0, 1.0) * np.exp(logs - logs.mean())
    return factors


def _over_others(values: Array, axis: int) -> Array:
    """The sum over all axes but one."""
    total: Array = values.sum(axis=tuple(i for i in range(values.ndim) if i != axis))
    return total


def _axis_indices(shape: Sequence[int]) -> list[tuple[Array, ...]]:
    """For each axis, all of its indices and some of the others."""
    some = [_spread(size, ENOUGH) for size in shape]
    return [
        np.ix_(*(np.arange(size) if i == axis else some[i] for i, size in enumerate(shape)))
        for axis in range(len(shape))
    ]


def _spread(size: int, count: int) -> Array:
    """At most ``count`` indices of an axis, spread over it."""
    return np.unique(np.linspace(0, size - 1, min(size, count)).astype(np.intp))


def _reciprocals(factors: Array) -> Array:
    """Reciprocals, 0 of 0."""
    return np.divide(1, factors, where=factors != 0, out=np.zeros_like(factors))


def scale(base: Array, factors: Sequence[Array]) -> Array:
    """The base times the factors of each axis, one after the other."""
    for axis, factor in enumerate(factors):
        base = base * factor.reshape([-1 if i == axis else 1 for i in range(base.ndim)])
    return base


def integers(values: Array) -> Array:
    """The bits of float32 as integers, which count units in the last place."""
    return np.asarray(values, np.float32, order="C").view(np.int32).astype(np.int64)

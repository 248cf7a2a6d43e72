"""Decisions as JSON.  Weights are left out: they are those of the graph saved beside them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from quantglow.foreign_types import Array
from quantglow.graph.graph import Graph
from quantglow.quantization.decisions.decisions import Decisions, Sizes, weights_of
from quantglow.types import DType, ElementType, QuantParams


def to_json(decisions: Decisions) -> dict[str, Any]:
    """The decisions in types that ``json`` writes."""
    return {
        "reasons": dict(decisions.reasons),
        "int8": sorted(decisions.int8),
        "elements": {name: _element(e) for name, e in decisions.elements.items()},
        "quantize_output": decisions.quantize_output,
        "symmetric": decisions.symmetric,
        "per_channel": decisions.per_channel,
        "factors": {n: _factors(fs) for n, fs in decisions.factors.items()},
        "grids": {name: _factors(grid) for name, grid in decisions.grids.items()},
        "fused": sorted(decisions.fused),
        "stored": None if decisions.stored is None else sorted(decisions.stored),
        "sizes": {name: [s.hex() for s in sizes] for name, sizes in decisions.sizes.items()},
    }


def from_json(data: Mapping[str, Any], graph: Graph) -> Decisions:
    """The decisions that ``to_json`` wrote, with the weights of ``graph``.

    Raises ``KeyError``, ``TypeError`` or ``ValueError``.
    """
    elements = {str(name): _element_from(e) for name, e in data["elements"].items()}
    return Decisions(
        reasons={str(name): str(reason) for name, reason in data["reasons"].items()},
        int8=frozenset(map(str, data["int8"])),
        elements=elements,
        weights=weights_of(graph),
        quantize_output=bool(data["quantize_output"]),
        symmetric=bool(data["symmetric"]),
        per_channel=bool(data["per_channel"]),
        factors={str(name): _factors_from(fs) for name, fs in data.get("factors", {}).items()},
        grids={str(name): _grid_from(grid) for name, grid in data.get("grids", {}).items()},
        fused=frozenset(map(str, data.get("fused", ()))),
        stored=None if (found := data.get("stored")) is None else frozenset(map(str, found)),
        sizes={str(name): _sizes_from(sizes) for name, sizes in data.get("sizes", {}).items()},
    )


def _factors(factors: Array) -> list[Any]:
    """A number for each channel, or rows of a matrix."""
    if factors.ndim > 1:
        return [_factors(row) for row in factors]
    return [float(factor).hex() for factor in factors]


def _factors_from(data: Any) -> Array:
    """The inverse of ``_factors``: positive factors, or an invertible matrix."""
    if data and isinstance(data[0], list):
        matrix = np.array([[float.fromhex(f) for f in row] for row in data], np.float32)
        square = matrix.shape == (len(data), len(data)) and np.isfinite(matrix).all()
        if not square or np.linalg.matrix_rank(matrix) < len(matrix):
            raise ValueError(f"a matrix of factors is {matrix.shape}, or has no inverse")
        return matrix
    found = np.array([float.fromhex(factor) for factor in data], np.float32)
    if not (np.isfinite(found).all() and (found > 0).all()):
        raise ValueError(f"factors are {data[:8]}")
    return found


def _grid_from(data: Any) -> Array:
    """Positive steps, and offsets."""
    steps, offsets = data
    found = np.array([[float.fromhex(f) for f in row] for row in (steps, offsets)])
    if not (np.isfinite(found).all() and (found[0] > 0).all()):
        raise ValueError(f"steps of an input are {steps[:8]}")
    return found


def _sizes_from(data: Any) -> Sizes:
    """The sizes of weights and of a bias."""
    weights, bias = map(float.fromhex, data)
    return weights, bias


def _element(element: ElementType) -> list[Any]:
    """dtype, scale and zero point; values have one scale."""
    quant = element.quant
    assert quant is not None
    return [str(element.dtype), float.hex(quant.scale), quant.zero_point]


def _element_from(data: Any) -> ElementType:
    dtype, scale, zero_point = data
    kind = DType(dtype)
    if kind not in (DType.I8, DType.I16):
        raise ValueError(f"a value is {kind}")
    low, high = kind.limits
    if not low <= int(zero_point) <= high:
        raise ValueError(f"a zero point is {zero_point}")
    return ElementType(kind, QuantParams.per_tensor(float.fromhex(scale), zero_point))

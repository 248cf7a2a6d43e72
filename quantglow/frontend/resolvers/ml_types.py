"""Result types of ai.onnx.ml operators for which ONNX has no inference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx

from quantglow.frontend.nodes.context import ML
from quantglow.types import DType, TensorType

Attributes = Mapping[str, Any]
Rule = Callable[[Sequence[TensorType], Attributes], tuple[TensorType, ...]]
"""Operand types and attributes -> the types of the results; none where they cannot be told."""


def same_shape(operands: Sequence[TensorType], attributes: Attributes) -> tuple[TensorType, ...]:
    """A float for each element."""
    return (TensorType(DType.F32, operands[0].shape),)


def same_type(operands: Sequence[TensorType], attributes: Attributes) -> tuple[TensorType, ...]:
    return (operands[0],)


def regression(operands: Sequence[TensorType], attributes: Attributes) -> tuple[TensorType, ...]:
    """A float for each row and target."""
    targets = int(attributes.get("n_targets", attributes.get("targets", 1)))
    return in_rows(operands, (DType.F32, (targets,)))


def columns(operands: Sequence[TensorType], attributes: Attributes) -> tuple[TensorType, ...]:
    """Stated columns of all operands, side by side."""
    return in_rows(operands, (DType.F32, (sum(attributes.get("inputdimensions", ())),)))


def trees(operands: Sequence[TensorType], attributes: Attributes) -> tuple[TensorType, ...]:
    """A label and a score of each class for each row."""
    return labelled(operands, len(attributes.get("classlabels_int64s", ())), 0)


def support_vectors(
    operands: Sequence[TensorType], attributes: Attributes
) -> tuple[TensorType, ...]:
    """A label, and a score of each class, or of each pair of classes without probabilities."""
    classes = len(attributes.get("classlabels_ints", ()))
    is_paired = classes > 2 and not attributes.get("prob_a") and "vectors_per_class" in attributes
    return labelled(operands, classes, classes * (classes - 1) // 2 if is_paired else 0)


def labelled(operands: Sequence[TensorType], classes: int, scores: int) -> tuple[TensorType, ...]:
    """int64 labels and scores, as many as classes where none are stated."""
    if classes < 2:
        return ()
    return in_rows(operands, (DType.I64, ()), (DType.F32, (scores or classes,)))


def in_rows(
    operands: Sequence[TensorType], *results: tuple[DType, tuple[int, ...]]
) -> tuple[TensorType, ...]:
    """Results with a first axis for the rows of the operand."""
    if operands[0].rank != 2:
        return ()
    return tuple(TensorType(dtype, (operands[0].shape[0], *rest)) for dtype, rest in results)


RULES: dict[str, Rule] = {
    "FeatureVectorizer": columns,
    "Imputer": same_type,
    "LinearRegressor": regression,
    "Normalizer": same_shape,
    "SVMClassifier": support_vectors,
    "SVMRegressor": regression,
    "Scaler": same_shape,
    "TreeEnsembleClassifier": trees,
    "TreeEnsembleRegressor": regression,
}


def ml_types(proto: onnx.NodeProto, operands: Sequence[TensorType]) -> dict[str, TensorType]:
    """The types of the node's named results, as far as a rule tells them."""
    if proto.domain != ML or proto.op_type not in RULES or not operands:
        return {}
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in proto.attribute}
    types = RULES[proto.op_type](operands, attributes)
    return {name: kind for name, kind in zip(proto.output, types, strict=False) if name}

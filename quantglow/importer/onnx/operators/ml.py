"""Importers of the ai.onnx.ml operators that are arithmetic.

Trees, support vectors, strings and maps are not: onnxruntime runs those.  Where ONNX's text leaves
a case open, onnxruntime's kernels are followed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from quantglow.importer.onnx.domains import ML
from quantglow.importer.onnx.nodes.context import Call, Unsupported, importer
from quantglow.importer.onnx.operators.math.integers import convert, map_elements
from quantglow.importer.onnx.operators.tensor.indexing import INT64, from_the_begin, reshape
from quantglow.importer.onnx.operators.tensor.slicing import few_slices
from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.ops.binary import Mul, Sub
from quantglow.ir.ops.convolution import Gemm
from quantglow.ir.ops.expression import Expr, arg, const, lconst
from quantglow.ir.ops.expression import call as fn
from quantglow.ir.ops.indexing import Gather, TopK
from quantglow.ir.ops.normalization import Softmax
from quantglow.ir.ops.pooling import ReduceMax, ReduceSum
from quantglow.ir.ops.primitives import Elementwise
from quantglow.ir.ops.shape import Concat
from quantglow.ir.ops.unary import Abs, Sigmoid, Sqrt
from quantglow.ir.symbolic.size import decide, decide_equal, prod
from quantglow.ir.types import DType, ElementType
from quantglow.support.arrays import Array

FLOAT = ElementType(DType.F32)


@importer(f"{ML}.Scaler")
def scaler(call: Call) -> Node:
    """``(x - offset) * scale``, with one value for all features or one for each.

    One Elementwise, so that it is neither rounded otherwise, which would change the branches of
    trees, nor folded into weights: int8 steps are for scaled features, which have one range.
    """
    x = _features(call, 0)
    args = [x, *(_per_feature(call, x, name, DType.F32) for name in ("offset", "scale"))]
    return map_elements(call, fn("mul", fn("sub", arg(0), arg(1)), arg(2)), args, DType.F32)


@importer(f"{ML}.Normalizer")
def normalizer(call: Call) -> Node:
    """Each row over its maximum, the sum of its magnitudes, or its length, where that is not 0."""
    x, axes, kind = _features(call, 0), (-1 % _rank_of_rows(call),), call.text("norm", "MAX")
    if kind == "MAX":
        norm: Node = ReduceMax(name=call.derive("norm"), x=x, axes=axes)
    elif kind == "L1":
        magnitude = Abs(name=call.derive("abs"), x=x)
        norm = ReduceSum(name=call.derive("norm"), x=magnitude, axes=axes)
    elif kind == "L2":
        squares = Mul(name=call.derive("squares"), x=x, y=x)
        total = ReduceSum(name=call.derive("sum"), x=squares, axes=axes)
        norm = Sqrt(name=call.derive("norm"), x=total)
    else:
        raise Unsupported(f"norm {kind!r}")
    quotient = fn("div", arg(0), arg(1))
    value = fn("select", fn("eq", arg(1), const(0)), arg(0), quotient)
    return map_elements(call, value, [x, norm], DType.F32)


@importer(f"{ML}.Binarizer")
def binarizer(call: Call) -> Node:
    """``x > threshold ? 1 : 0``, in the type of x."""
    if not call.is_float(0):
        raise Unsupported("of integers")
    above = fn("gt", arg(0), const(call.number("threshold", 0.0)))
    return map_elements(call, fn("select", above, const(1), const(0)), [call.node(0)], DType.F32)


@importer(f"{ML}.Imputer")
def imputer(call: Call) -> Node:
    """x with one value (which may be NaN) replaced, by one for all features or one for each."""
    x = call.tensor(0)
    kind = "floats" if x.type.dtype is DType.F32 else "int64s"
    if x.type.dtype not in (DType.F32, DType.I64):
        raise Unsupported(f"of {x.type.dtype} tensors")
    values = _per_feature(call, x, f"imputed_value_{kind}", x.type.dtype)
    matches = _is_float_value(call) if kind == "floats" else _is_integer_value(call)
    return map_elements(call, fn("select", matches, arg(1), arg(0)), [x, values], x.type.dtype)


def _is_float_value(call: Call) -> Expr:
    replaced = call.number("replaced_value_float", 0.0)
    if np.isnan(replaced):
        return fn("not", fn("eq", arg(0), arg(0)))
    return fn("eq", arg(0), const(replaced))


def _is_integer_value(call: Call) -> Expr:
    return fn("eq", arg(0), lconst(call.integer("replaced_value_int64", 0)))


@importer(f"{ML}.FeatureVectorizer")
def feature_vectorizer(call: Call) -> Node:
    """Columns side by side, as floats."""
    parts = [_features(call, i) for i in range(len(call.proto.input))]
    widths = call.integers("inputdimensions", ())
    stated = [(width,) for width in widths]
    if not decide_equal([part.type.shape[1:] for part in parts], stated):
        raise Unsupported(f"its inputs do not have the {list(widths)} columns that it states")
    return Concat(name=call.result, parts=tuple(parts), axis=1) if len(parts) > 1 else parts[0]


@importer(f"{ML}.ArrayFeatureExtractor")
def array_feature_extractor(call: Call) -> Node:
    """The elements of the last axis at these indices; a vector counts as one row."""
    x = call.tensor(0)
    x = reshape(call, x, (1, *x.type.shape)) if x.type.rank == 1 else x
    axis, count = x.type.rank - 1, int(prod(call.shape(1)))
    if not call.is_known(1):
        flat = reshape(call, call.tensor(1), (count,))
        indices = from_the_begin(call, flat, x.type.shape[axis])
        return Gather(name=call.result, x=x, indices=indices, axis=axis)
    chosen = [int(i) for i in call.array(1, "indices").reshape(-1)]
    if not all(i >= 0 and decide(i < x.type.shape[axis]) for i in chosen):
        raise Unsupported(f"an index is outside the {x.type.shape[axis]} features")
    if (slices := few_slices(call, call.result, x, axis, chosen)) is not None:
        return slices
    indices = Constant(name=call.derive("indices"), value=np.array(chosen, np.int64))
    return Gather(name=call.result, x=x, indices=indices, axis=axis)


@importer(f"{ML}.OneHotEncoder")
def one_hot_encoder(call: Call) -> Node:
    """A new last axis with 1 at the category of each element; no 1 for unknown ones."""
    categories = call.integers("cats_int64s", ())
    if not categories:
        raise Unsupported("its categories are strings")
    if not call.integer("zeros", 1):
        raise Unsupported("an unknown category ends the run (zeros = 0)")
    x = call.tensor(0)
    kinds = Constant(name=call.derive("categories"), value=np.array(categories, np.int64))
    same = fn("eq", convert(arg(0), x.type.dtype, DType.I64), arg(1))
    value = fn("select", same, const(1), const(0))
    return map_elements(call, value, [reshape(call, x, (*x.type.shape, 1)), kinds], DType.F32)


@importer(f"{ML}.LinearRegressor")
def linear_regressor(call: Call) -> Node:
    """``x @ coefficients' + intercepts`` for each target."""
    targets, kind = call.integer("targets", 1), post_transform(call)
    if kind != "NONE" and targets == 1:
        raise Unsupported(f"post_transform {kind} of one target")
    names = [call.result if kind == "NONE" else call.derive("scores")]
    return _transform(linear(call, targets, *names), kind, call.result)


@importer(f"{ML}.LinearClassifier")
def linear_classifier(call: Call) -> list[Node]:
    """The label of the largest score, and the scores.  One score decides between two labels; then
    the scores are its probability (or 1 - score) and the score itself.
    """
    labels, kind = _integer_labels(call), post_transform(call)
    count = len(call.attributes.get("intercepts", ()))
    if count not in (len(labels), 1) or count == len(labels) == 1 or len(labels) < 2:
        raise Unsupported(f"{count} scores for {len(labels)} labels")
    if count == 1 and (kind == "SOFTMAX" or len(labels) != 2):
        raise Unsupported(f"post_transform {kind} of one score for {len(labels)} labels")
    is_plain = kind == "NONE" and count > 1
    scores = linear(call, count, call.result_name(1) if is_plain else call.derive("scores"))
    label = _choose_label(call, scores, np.array(labels, np.int64))
    if count == 1:
        return [label, _two_classes(call, scores, kind)]
    return [label, _transform(scores, kind, call.result_name(1))]


def _integer_labels(call: Call) -> tuple[int, ...]:
    """The labels; numbers in place of strings that nothing reads.  Raises ``Unsupported``."""
    strings = call.attributes.get("classlabels_strings", ())
    if strings and call.proto.output[0] in call.scope.used:
        raise Unsupported("its labels are strings")
    return tuple(range(len(strings))) or call.integers("classlabels_ints", ())


def _choose_label(call: Call, scores: Node, labels: Array) -> Node:
    """The label of the largest score, the first one of equal ones."""
    table = Constant(name=call.derive("labels"), value=labels)
    rows = scores.type.shape[0]
    if decide(scores.type.shape[1] == 1):
        above = fn("gt", arg(0), const(0))
        place = fn("select", above, lconst(1), lconst(0))
        best: Node = Elementwise(
            name=call.derive("best"), args=(scores,), expression=place, out=INT64
        )
    else:
        best = TopK(name=call.derive("best"), x=scores, k=1)
    return Gather(name=call.result, x=table, indices=reshape(call, best, (rows,)), axis=0)


def _two_classes(call: Call, score: Node, kind: str) -> Node:
    """``[1 - p, p]`` of one score."""
    if kind == "LOGISTIC":
        score = Sigmoid(name=call.derive("probability"), x=score)
    other = Sub(name=call.derive("other"), x=call.constant("one", np.ones((1, 1))), y=score)
    return Concat(name=call.result_name(1), parts=(other, score), axis=1)


def linear(call: Call, count: int, name: str) -> Node:
    """``count`` scores of each row.  Raises ``Unsupported`` where the coefficients do not fit."""
    x = _features(call, 0)
    rows = reshape(call, x, (1, *x.type.shape)) if x.type.rank == 1 else x
    coefficients = np.asarray(call.attributes.get("coefficients", ()), np.float32)
    intercepts = np.asarray(call.attributes.get("intercepts", ()), np.float32)
    if rows.type.rank != 2 or decide(coefficients.size != count * rows.type.shape[1]):
        raise Unsupported(f"{coefficients.size} coefficients for inputs of shape {x.type.shape}")
    if intercepts.size not in (0, count):
        raise Unsupported(f"{intercepts.size} intercepts for {count} scores")
    w = call.constant("kn", coefficients.reshape(count, -1).T)
    b = call.constant("bias", intercepts) if intercepts.size else None
    return Gemm(name=name, x=rows, w=w, b=b)


def post_transform(call: Call) -> str:
    """Raises ``Unsupported`` for SOFTMAX_ZERO and PROBIT."""
    kind = call.text("post_transform", "NONE")
    if kind not in ("NONE", "LOGISTIC", "SOFTMAX"):
        raise Unsupported(f"post_transform {kind}")
    return kind


def _transform(scores: Node, kind: str, name: str) -> Node:
    if kind == "NONE":
        return scores
    return (Sigmoid if kind == "LOGISTIC" else Softmax)(name=name, x=scores)


def _features(call: Call, position: int) -> Node:
    """An operand of any number type as float32."""
    x = call.tensor(position)
    if x.type.dtype is DType.F32:
        return x
    value = convert(arg(0), x.type.dtype, DType.F32)
    return Elementwise(name=call.derive("float"), args=(x,), expression=value, out=FLOAT)


def _rank_of_rows(call: Call) -> int:
    """The rank of the operand, a row or a batch of rows.  Raises ``Unsupported`` for others."""
    rank = len(call.shape(0))
    if rank not in (1, 2):
        raise Unsupported(f"of rank {rank}; features are rows")
    return rank


def _per_feature(call: Call, x: Node, name: str, dtype: DType) -> Node:
    """An attribute with one value, or one for each feature.  Raises ``Unsupported``."""
    values: Sequence[float] = call.attributes.get(name, ())
    channels = x.type.shape[-1 % _rank_of_rows(call)]
    if len(values) != 1 and decide(len(values) != channels):
        raise Unsupported(f"{name} has {len(values)} values for inputs of shape {x.type.shape}")
    return Constant(name=call.derive(name), value=np.asarray(values, dtype.numpy))

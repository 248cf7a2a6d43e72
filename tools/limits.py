"""Forms of compiled operators that onnxruntime computes: the limit and the reason of each.

Two models of one node show each limit: the last one that is compiled and the first one that is not.
``tests/e2e/test_limits.py`` tries them, and checks that no reason of an importer is missing here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from quantglow.importer.onnx import import_model
from quantglow.importer.onnx.domains import MICROSOFT, ML
from quantglow.importer.onnx.nodes.context import IMPORTERS
from quantglow.importer.onnx.operators.controlflow.loops import MOST_UNROLLED
from quantglow.importer.onnx.operators.math.fourier import MOST_WHOLE
from quantglow.importer.onnx.operators.quantization.qlinear import (
    CONCAT,
    FLOAT_PRODUCTS,
    FORMS,
)
from quantglow.importer.onnx.resolvers.expansion import DEFINITIONS
from quantglow.ir.ops.external import External
from quantglow.support.errors import UnsupportedOpError

Operand = tuple[int, ...] | NDArray[Any] | None
"""The shape of a float input, a constant, or an absent operand."""


@dataclass(frozen=True)
class Limit:
    """A ``form`` of ``operators`` that is not compiled.

    ``within`` and ``beyond`` make models on either side of the limit; ``reason`` is part of the
    report's text on ``beyond``.
    """

    operators: str
    form: str
    reason: str
    within: Callable[[], onnx.ModelProto]
    beyond: Callable[[], onnx.ModelProto]


def node(
    op: str,
    *operands: Operand,
    opset: int = 20,
    domain: str = "",
    outputs: int = 1,
    **settings: Any,
) -> onnx.ModelProto:
    """A model of one node; types of results are inferred unless declared."""
    names = ["" if operand is None else f"x{i}" for i, operand in enumerate(operands)]
    results = [f"y{i}" for i in range(outputs)]
    built = helper.make_node(op, names, results, name="n", domain=domain, **settings)
    pairs = list(zip(names, operands, strict=True))
    graph = helper.make_graph(
        [built],
        "limit",
        [helper.make_tensor_value_info(n, 1, o) for n, o in pairs if isinstance(o, tuple)],
        [helper.make_tensor_value_info(name, 1, None) for name in results],
        [numpy_helper.from_array(o, n) for n, o in pairs if isinstance(o, np.ndarray)],
    )
    versions = {"": opset, ML: 3, MICROSOFT: 1}
    imports = [helper.make_opsetid(name, version) for name, version in versions.items()]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def reasons(model: onnx.ModelProto) -> list[str]:
    """Reasons why nodes of a model are not compiled; empty if all are."""
    try:
        graph = import_model(model, fallback=True)
    except UnsupportedOpError as error:
        return list(error.problems)
    return [value.reason for value in graph.nodes if isinstance(value, External)]


def ones(*shape: int) -> NDArray[np.float32]:
    return np.full(shape, 0.1, np.float32)


def forgetful(coupled: int) -> onnx.ModelProto:
    """An LSTM whose input and forget gates may be one."""
    weights = ones(1, 16, 3), ones(1, 16, 4)
    return node("LSTM", (2, 1, 3), *weights, hidden_size=4, input_forget=coupled)


def in_bytes(*lengths: int) -> onnx.ModelProto:
    """An LSTM of 3 steps, quantized at run time, on sequences of these lengths."""
    weights = [np.ones((1, count, 16), np.int8) for count in (3, 4)]
    scale, point = ones(1), np.zeros(1, np.int8)
    operands = ((3, 2, 3), *weights, None, np.array(lengths, np.int32), None, None, None)
    parameters = (scale, point) * 2
    return node("DynamicQuantizeLSTM", *operands, *parameters, domain=MICROSOFT, hidden_size=4)


def transposed(axes: int, **settings: Any) -> onnx.ModelProto:
    return node("ConvTranspose", (1, 2, *(4,) * axes), ones(2, 3, *(3,) * axes), **settings)


def pool(axes: int) -> onnx.ModelProto:
    return node("MaxPool", (1, 2, *(4,) * axes), kernel_shape=[2] * axes)


def grid(*size: int) -> onnx.ModelProto:
    return node("GridSample", (1, 2, *size), ones(1, *size, len(size)))


def resize(*sizes: int, **settings: Any) -> onnx.ModelProto:
    return node("Resize", (1, 2, 4, 4), None, None, np.array(sizes, np.int64), **settings)


def pad(width: int, mode: str = "reflect") -> onnx.ModelProto:
    return node("Pad", (2, 4), np.array([0, width, 0, 0], np.int64), mode=mode)


def transform(length: int) -> onnx.ModelProto:
    return node("DFT", (1, length, 1), None, np.array(1, np.int64))


def training(mode: int) -> onnx.ModelProto:
    moments = (ones(2) for _ in range(4))
    return node(
        "BatchNormalization", (1, 2, 4, 4), *moments, outputs=1 + 2 * mode, training_mode=mode
    )


def regressor(kind: str) -> onnx.ModelProto:
    return node(
        "LinearRegressor",
        (2, 3),
        domain=ML,
        coefficients=[0.1] * 6,
        targets=2,
        post_transform=kind,
    )


def categories(**settings: Any) -> onnx.ModelProto:
    return node("OneHotEncoder", (2, 3), domain=ML, **settings)


def largest(known: bool) -> onnx.ModelProto:
    """TopK whose number is a constant, or computed from an input."""
    built = node("TopK", (2, 8), np.array([3], np.int64), outputs=2)
    built.graph.output[1].type.tensor_type.elem_type = onnx.TensorProto.INT64
    if not known:
        count = helper.make_node("Cast", ["k"], ["x1"], to=onnx.TensorProto.INT64)
        built.graph.node.insert(0, count)
        built.graph.input.append(helper.make_tensor_value_info("k", 1, [1]))
        del built.graph.initializer[:]
    return built


def prime(above: int) -> int:
    """The first prime number above a number: transforms of this length cannot be factored."""
    number = above + 1
    while any(number % factor == 0 for factor in range(2, int(number**0.5) + 1)):
        number += 1
    return number


def loop(op: str, trips: int = 3, condition: bool = False) -> onnx.ModelProto:
    """A Loop on four numbers to which it adds one, or joins it (``op``), and which it lists; with a
    ``condition`` only while they are small."""
    info, kind = helper.make_tensor_value_info, onnx.TensorProto
    settings: dict[str, Any] = {"axis": 0} if op == "Concat" else {}
    body = helper.make_graph(
        [
            helper.make_node(op, ["state", "more"], ["next"], **settings),
            helper.make_node("ReduceMax", ["next"], ["top"], keepdims=0),
            helper.make_node("Less", ["top", "top"] if condition else ["one", "two"], ["on"]),
            helper.make_node("Identity", ["top"], ["row"]),
        ],
        "body",
        [info("trip", kind.INT64, []), info("holds", kind.BOOL, []), info("state", 1, [None])],
        [info("on", kind.BOOL, []), info("next", 1, [None]), info("row", 1, [])],
        [numpy_helper.from_array(np.array(n, np.float32), name) for name, n in NUMBERS.items()],
    )
    return node("Loop", np.array(trips), None, (4,), outputs=2, body=body)


NUMBERS = {"one": 1, "two": 2, "more": [1]}
LIMITS = (
    Limit(
        "Loop",
        "values that grow until a condition ends them, or of which more than the last rows are "
        f"read in more than {MOST_UNROLLED} trips: the body is compiled as a model of its own",
        "a value that it carries",
        lambda: loop("Concat", MOST_UNROLLED),
        lambda: loop("Concat", MOST_UNROLLED + 1),
    ),
    Limit(
        "Loop",
        "results of each trip where a computed condition ends it: the same",
        "it stacks the values of a number of trips that it computes",
        lambda: loop("Add"),
        lambda: loop("Add", condition=True),
    ),
    Limit(
        "LSTM", "`input_forget`", "couples the gates", lambda: forgetful(0), lambda: forgetful(1)
    ),
    Limit(
        "DynamicQuantizeLSTM",
        "sequences of different lengths",
        "sequences of different lengths",
        lambda: in_bytes(3, 3),
        lambda: in_bytes(3, 1),
    ),
    Limit(
        "ConvTranspose",
        "three spatial axes with `auto_pad` or `output_shape`",
        "pads of a wanted size",
        lambda: transposed(3),
        lambda: transposed(3, output_shape=[6, 6, 6]),
    ),
    Limit(
        "AveragePool, Conv, ConvTranspose, LpPool, MaxPool",
        "four spatial axes",
        "4 spatial axes are too many",
        lambda: pool(3),
        lambda: pool(4),
    ),
    Limit(
        "GridSample",
        "three spatial axes",
        "3 spatial axes; 2 are supported",
        lambda: grid(3, 3),
        lambda: grid(3, 3, 3),
    ),
    Limit(
        "Resize, Upsample",
        "of the batch or the channels",
        "resizes the batch or channel axis",
        lambda: resize(1, 2, 8, 8),
        lambda: resize(1, 4, 8, 8),
    ),
    Limit(
        "Pad",
        "`reflect` or `wrap` wider than the axis",
        "pads wider than axis 1 of 4",
        lambda: pad(3),
        lambda: pad(4),
    ),
    Limit(
        "DFT, STFT",
        f"lengths without factors whose matrix has more than {MOST_WHOLE} elements",
        "the matrix of",
        lambda: transform(512),
        lambda: transform(prime(MOST_WHOLE // 1000)),
    ),
    Limit(
        "BatchNormalization, Dropout",
        "training",
        "training_mode is set",
        lambda: training(0),
        lambda: training(1),
    ),
    Limit(
        "LinearClassifier, LinearRegressor",
        "`SOFTMAX_ZERO`, `PROBIT`",
        "post_transform PROBIT",
        lambda: regressor("LOGISTIC"),
        lambda: regressor("PROBIT"),
    ),
    Limit(
        "OneHotEncoder",
        "categories that are strings, or unknown ones forbidden",
        "(zeros = 0)",
        lambda: categories(cats_int64s=[0, 1]),
        lambda: categories(cats_int64s=[0, 1], zeros=0),
    ),
    Limit(
        "any",
        "operands that set shapes (`k`, axes, sizes, pads), or weights, computed at run time",
        "is computed at run time",
        lambda: largest(known=True),
        lambda: largest(known=False),
    ),
)


def lines() -> Iterator[str]:
    """Markdown: a line for each operator or group of them."""
    yield "\nForms of compiled operators that onnxruntime computes; the report has each reason:\n\n"
    forms: dict[str, list[str]] = {}
    for limit in LIMITS:
        forms.setdefault(limit.operators, []).append(limit.form)
    for operators, value in forms.items():
        yield f"- {operators}: {'; '.join(value)}\n"


def classical() -> str:
    """The operators of ai.onnx.ml in a sentence."""
    schemas = onnx.defs.get_all_schemas_with_history()
    names = sorted({schema.name for schema in schemas if schema.domain == ML})
    ours = [name for name in names if f"{ML}.{name}" in IMPORTERS]
    others = [name for name in names if name not in ours]
    return (
        f"{', '.join(ours)} of {ML} are compiled, {', '.join(others)} are not; nor are strings, "
        "sequences and maps of any operator."
    )


def microsoft() -> str:
    """The operators of com.microsoft in a sentence."""
    prefix = f"{MICROSOFT}."
    kinds = {*IMPORTERS, *FORMS, CONCAT, *DEFINITIONS, *(prefix + n for n in FLOAT_PRODUCTS)}
    names = sorted(kind.removeprefix(prefix) for kind in kinds if kind.startswith(prefix))
    return f"{', '.join(names)} of {MICROSOFT} are compiled; onnxruntime runs its other operators."

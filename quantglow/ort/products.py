"""Multiply-accumulates of an ONNX model in onnxruntime, counted by a run that it profiles.

The profile has an event for each kernel that ran, those in subgraphs of Loop, Scan and If included,
with the shapes of its operands and results.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from quantglow.ort.session import SILENT, failures, runtime
from quantglow.support.errors import FallbackError

Dims = Sequence[int]
Shapes = Sequence[Dims]

SUFFIX = "_kernel_time"
"""Ending of the names of events, behind the name of the node."""


def count_products(model: bytes, feeds: Mapping[str, Any]) -> int:
    """Multiply-accumulates of a run of the model on some inputs, which is run for this.

    Convolutions and their transposes, Gemm, MatMul and their fused and quantized forms, Einsum,
    LSTM, GRU and RNN (products with inputs and states), and attention count; other operators are no
    products.  Raises ``FallbackError``.
    """
    model, equations = _with_named_einsums(model)
    return sum(_products_in(event, equations) for event in _run_profiled(model, feeds))


def may_have_products(op_type: str) -> bool:
    """Whether an operator is one that counts, or may run others: those with graphs inside."""
    return op_type in RULES or op_type in ("Einsum", "If", "Loop", "Scan", "SequenceMap")


def _run_profiled(model: bytes, feeds: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The events of a run."""
    ort = runtime()
    with tempfile.TemporaryDirectory(prefix="quantglow-") as folder:
        options = ort.SessionOptions()
        options.enable_profiling = True
        options.profile_file_prefix = os.path.join(folder, "run")
        options.log_severity_level = SILENT
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        # Weights that a kernel has packed are no longer among the shapes of its operands.
        options.add_session_config_entry("session.disable_prepacking", "1")
        try:
            session = ort.InferenceSession(model, options, ["CPUExecutionProvider"])
            session.run(None, dict(feeds))
            path = session.end_profiling()
        except failures() as error:
            raise FallbackError(f"onnxruntime cannot profile the model: {error}") from error
        with open(path, encoding="utf-8") as file:
            events: list[dict[str, Any]] = json.load(file)
    return events


def _products_in(event: Mapping[str, Any], equations: Mapping[str, str]) -> int:
    """Multiply-accumulates of the kernel of an event; 0 for events and kernels of other kinds."""
    facts, name = event.get("args", {}), str(event.get("name", ""))
    kind = facts.get("op_name")
    if not name.endswith(SUFFIX) or "input_type_shape" not in facts:
        return 0
    operands, results = (_dims(facts[f"{end}_type_shape"]) for end in ("input", "output"))
    if kind == "Einsum":
        return _einsum(equations.get(name.removesuffix(SUFFIX), ""), operands)
    rule = RULES.get(str(kind))
    return 0 if rule is None or not results else rule(operands, results)


def _dims(entries: Sequence[Mapping[str, Dims]]) -> Shapes:
    """The shapes in ``[{"float": [2, 3]}, …]``."""
    return [tuple(dims) for entry in entries for dims in entry.values()]


def _matmul(operands: Shapes, results: Shapes) -> int:
    return prod(results[0]) * operands[0][-1]


def _gemm(operands: Shapes, results: Shapes) -> int:
    """A product whose first factor may be transposed."""
    rows = results[0][-2]
    return prod(results[0]) * (prod(operands[0][-2:]) // rows) if rows else 0


def _convolution(weights: int) -> Callable[[Shapes, Shapes], int]:
    """The rule for weights [M, C / groups, …] at a position of the operands."""
    return lambda operands, results: prod(results[0]) * prod(operands[weights][1:])


def _transposed_convolution(operands: Shapes, results: Shapes) -> int:
    x, weights = operands[:2]
    return prod(x) * prod(weights[1:])


def _recurrence(operands: Shapes, results: Shapes) -> int:
    """Each step of each row multiplies all weights of inputs and of states once."""
    (length, batch, _), *weights = operands[:3]
    return length * batch * sum(map(prod, weights))


def _attention(operands: Shapes, results: Shapes) -> int:
    """Scores of all queries and keys, and the sums of values; ``present`` has the number of keys
    where there is a cache."""
    query, key = operands[:2]
    products = 0
    if len(key) == 2:  # com.microsoft's Attention: weights of queries, keys and values
        products, width = prod(query[:-1]) * prod(key), results[0][-1]
        query, key = (*query[:-1], width), query
    length = results[1][-2] if len(results) > 1 and len(results[1]) == 4 else key[-2]
    return products + (prod(query) + prod(results[0])) * length


RULES: Mapping[str, Callable[[Shapes, Shapes], int]] = {
    "Attention": _attention,
    "Conv": _convolution(1),
    "ConvInteger": _convolution(1),
    "ConvTranspose": _transposed_convolution,
    "FusedConv": _convolution(1),
    "FusedGemm": _gemm,
    "FusedMatMul": _gemm,
    "GRU": _recurrence,
    "Gemm": _gemm,
    "GroupQueryAttention": _attention,
    "LSTM": _recurrence,
    "MatMul": _matmul,
    "MatMulInteger": _matmul,
    "MatMulNBits": _matmul,
    "MultiHeadAttention": _attention,
    "QLinearConv": _convolution(3),
    "QLinearMatMul": _matmul,
    "RNN": _recurrence,
}
"""Multiply-accumulates of operators, from the shapes of their operands and results."""


def _einsum(equation: str, operands: Shapes) -> int:
    """The product of the sizes of all indices; 0 for one operand, which nothing multiplies."""
    terms = equation.replace(" ", "").partition("->")[0].split(",")
    if len(operands) < 2 or len(terms) != len(operands):
        return 0
    sizes: dict[str, int] = {}
    for term, dims in zip(terms, operands, strict=True):
        before, dots, behind = term.partition("...")
        inner = range(len(dims) - len(before) - len(behind))
        # Axes of "..." are counted from the last one, as broadcasting aligns them.
        middle = [f"...{-len(inner) + n}" for n in inner] if dots else []
        for index, size in zip([*before, *middle, *behind], dims, strict=True):
            sizes[index] = max(size, sizes.get(index, 0)) if size else 0
    return prod(sizes.values())


def _with_named_einsums(model: bytes) -> tuple[bytes, Mapping[str, str]]:
    """The model, with names for its Einsum nodes, and their equations by these names."""
    if b"Einsum" not in model:
        return model, {}
    # Imported here because a process without such nodes needs no onnx.
    import onnx

    from quantglow.importer.onnx.reading.proto import every_node

    proto, equations = onnx.load_from_string(model), dict[str, str]()
    for node in every_node(proto):
        if node.op_type == "Einsum":
            node.name = f"Einsum{len(equations)}"
            equations[node.name] = next(a.s.decode() for a in node.attribute)
    return bytes(proto.SerializeToString()), equations

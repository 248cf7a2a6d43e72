"""Accuracy of the outputs against the float model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from quantglow.evaluation.accuracy import LayerAccuracy, OutputAccuracy
from quantglow.evaluation.metrics import ErrorSums, class_like, top1_agreement
from quantglow.interpreter import interpret
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.signature import declared_only
from quantglow.ir.types import DType, TensorType
from quantglow.ort.float_results import Outputs, running
from quantglow.quantization.plan.network_ends import behind_views
from quantglow.quantization.search.fake_quantization import logit_outputs, measured_outputs
from quantglow.quantization.shape_variants import graph_for
from quantglow.runtime.programs.feeds import TensorInfo
from quantglow.support.arrays import Array

Feeds = Mapping[str, Array]
"""Input name -> array."""
Runner = Callable[[Feeds], list[Array]]
"""Function that computes all outputs, in order."""

INTERPRETER = "the float interpreter"
ONNXRUNTIME = "onnxruntime (float)"


@dataclass(frozen=True)
class Expected:
    """Float outputs of each sample, the name of the runtime that computed them, and notes on it."""

    outputs: Outputs
    name: str
    notes: tuple[str, ...] = ()


NO_NUMBERS = np.zeros(0, np.float32)
"""Stands for an output that is compared with nothing: strings, a sequence, an optional, a map."""

Reference = Callable[[], Expected]
"""Function that waits for the float outputs."""


@contextmanager
def reference(model: object, float_graph: Graph, samples: Sequence[Feeds]) -> Iterator[Reference]:
    """Compute the float outputs while the block runs.

    onnxruntime computes them in a process of its own; the interpreter does if there is no ONNX
    model or onnxruntime fails.  Strings and opaque values are left out (``NO_NUMBERS``).
    """

    def interpreted(*notes: str) -> Expected:
        outputs = [interpret(graph_for(feeds, float_graph), feeds) for feeds in samples]
        return Expected(outputs, INTERPRETER, notes)

    if isinstance(model, Graph) or not samples or not numeric_outputs(float_graph):
        yield interpreted
        return
    with ExitStack() as stack:
        try:
            inputs = float_graph.signature.inputs
            declared = [declared_only(inputs, feeds) for feeds in samples]
            numeric = numeric_outputs(float_graph)
            answer = stack.enter_context(running(model, declared, list(numeric.values())))
        except Exception as error:  # noqa: BLE001 - the check is worth less than the model
            failure = str(error)
            yield lambda: interpreted(fail(failure))
            return

        def expected() -> Expected:
            try:
                outputs, notes = answer()
            except Exception as error:  # noqa: BLE001 - as above
                return interpreted(fail(str(error)))
            rows = [dict(zip(numeric, row, strict=True)) for row in outputs]
            places = range(len(float_graph.outputs))
            complete = [[row.get(place, NO_NUMBERS) for place in places] for row in rows]
            return Expected(complete, ONNXRUNTIME, notes)

        yield expected


def numeric_outputs(graph: Graph) -> dict[int, str]:
    """The names of the outputs that are tensors of numbers, by their positions."""
    ends = enumerate(graph.signature.outputs)
    return {i: port.name for i, port in ends if TensorInfo.of(port).is_numeric}


def fail(cause: str) -> str:
    """The note on a model that onnxruntime did not run."""
    return f"compared with {INTERPRETER}, because onnxruntime did not run the model: {cause}"


def output_accuracy(
    graph: Graph, results: Outputs, expected: Outputs
) -> tuple[OutputAccuracy, ...]:
    """Each output ``results`` of ``graph`` against ``expected``, over all samples; those of other
    shapes, as nodes that decide sizes may give, do not count.  Strings and opaque values have no
    accuracy."""
    entries = []
    for position, name in numeric_outputs(graph).items():
        pairs = pairs_of_one_size(results, expected, position)
        references, values = [reference for reference, _ in pairs], [value for _, value in pairs]
        if pairs or not results:
            is_scored = _is_scored(graph.outputs[position][1].type, references)
            entries.append(compare_output(name, references, values, is_scored))
    return tuple(entries)


def _is_scored(kind: TensorType, arrays: Sequence[Array]) -> bool:
    """Whether each row of an output may have a score for each class; ``arrays`` tell of one whose
    shape is known late."""
    if kind.dtype is not DType.OPAQUE:
        return class_like(kind)
    full = [array for array in arrays if array.size]
    return bool(full) and all(
        array.dtype.kind == "f" and class_like(TensorType(DType.F32, array.shape)) for array in full
    )


def pairs_of_one_size(
    results: Outputs, expected: Outputs, position: int
) -> list[tuple[Array, Array]]:
    """The expected and the actual array of an output for each sample where they have one size."""
    pairs = ((e[position], r[position]) for e, r in zip(expected, results, strict=True))
    return [(a, b.reshape(a.shape)) for a, b in pairs if a.size == b.size]


def shape_notes(names: Mapping[int, str], results: Outputs, expected: Outputs) -> tuple[str, ...]:
    """Notes on outputs, by their positions, that have other shapes than in float."""
    counts = ((name, len(pairs_of_one_size(results, expected, i))) for i, name in names.items())
    return tuple(
        f"output {name!r} has another shape than in float on {len(results) - count} of "
        f"{len(results)} samples, which do not count"
        for name, count in counts
        if count < len(results)
    )


def compare_output(
    name: str, expected: Sequence[Array], results: Sequence[Array], classes: bool
) -> OutputAccuracy:
    """The accuracy of an output over all samples; ``classes``: each row has a score for each, or
    holds their indices, the best first.
    """
    sums = sum(map(ErrorSums.of, expected, results), ErrorSums())
    is_integer = any(array.dtype.kind in "iub" for array in expected)
    pairs = zip(expected, results, strict=True) if classes or is_integer else ()
    same = partial(_equal_answers, classes=classes) if is_integer else top1_agreement
    hits = [same(_rows(w), _rows(f)) for w, f in pairs if w.size]
    agreement = float(np.mean(hits)) if hits else None
    return OutputAccuracy(name, sums.sqnr_db, sums.cosine, sums.max_error, agreement, is_integer)


def with_logits(
    outputs: Sequence[OutputAccuracy], graph: Graph, layers: Sequence[LayerAccuracy]
) -> tuple[OutputAccuracy, ...]:
    """The outputs of the float ``graph`` with the SQNR of logits, as far as layers have it."""
    decibels = {layer.name: layer.sqnr_accumulated_db for layer in layers}
    logits = dict(zip(measured_outputs(graph), logit_outputs(graph), strict=True))
    ends = {name: node for name, node in graph.outputs if logits.get(node, node) is not node}
    behind = {name: decibels.get(behind_views(logits[node]).name) for name, node in ends.items()}
    return tuple(replace(output, logits_db=behind.get(output.name)) for output in outputs)


def _equal_answers(reference: Array, value: Array, classes: bool) -> float:
    """Share of integers that are equal; with ``classes`` only the first of each row counts."""
    answers, other = (reference[:, :1], value[:, :1]) if classes else (reference, value)
    return float(np.mean(answers == other))


def _rows(array: Array) -> Array:
    return array.reshape(array.shape[0] if array.ndim else 1, -1)

"""The check of a model that is cut: the outputs of all its parts together, against onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from quantglow.driver.pipeline.calibrated import CheckSamples
from quantglow.foreign_types import Array
from quantglow.graph.border import declared_feeds
from quantglow.graph.signature import Signature
from quantglow.report import Report
from quantglow.report.accuracy.accuracy import OutputAccuracy
from quantglow.report.accuracy.headline import NOTHING_QUANTIZED, RightAnswers
from quantglow.report.accuracy.metrics import class_like
from quantglow.report.accuracy.onnxruntime_check import Outputs, running
from quantglow.report.accuracy.outputs import ONNXRUNTIME, output_accuracy_of
from quantglow.report.accuracy.verification import Verification, attempted, until_interrupted
from quantglow.runtime.fallback_model import PartlyCompiledModel
from quantglow.types import DType, TensorType

HEAD_ONLY = "the outputs of the whole model were not compared, only those of its first part"

NO_NUMBERS = "the outputs were not compared: none is a tensor of numbers"

NO_RIGHT_ANSWERS = (
    "the labels of validation_data were not used: no output has one row of scores for each, of the "
    "same shape in float and int8"
)


def checked_whole(
    model: PartlyCompiledModel, signature: Signature, checks: CheckSamples
) -> PartlyCompiledModel:
    """The model; its report has the accuracy of its own outputs, not of those of its first part."""
    if not checks.feeds:
        return model
    check = partial(_compared, model, signature, checks)
    result, head = attempted(check, Verification(), HEAD_ONLY), model.reporter

    def report() -> Report:
        known = head()
        assert isinstance(known, Report)
        notes = (*known.notes, *result.notes)
        if model.staged is not None and model.staged.is_int8:
            notes = tuple(note for note in notes if note != NOTHING_QUANTIZED)
        if not result.samples:
            return replace(known, notes=notes)
        return replace(
            known,
            notes=notes,
            outputs=result.outputs,
            compared_with=result.compared_with,
            samples=result.samples,
            right=result.right,
        )

    return replace(model, reporter=report)


def _compared(
    model: PartlyCompiledModel, signature: Signature, checks: CheckSamples
) -> Verification:
    """Every output that is a tensor of numbers, on the samples of the check."""
    samples, names = list(until_interrupted(checks.feeds)), _numbers(model)
    if not names:
        return Verification(notes=(NO_NUMBERS,))
    declared = [declared_feeds(signature.inputs, feeds) for feeds in samples]
    with running(model.model, declared, names) as answer:
        found: Outputs = [model.run(names, feeds) for feeds in samples]
        wanted, notes = answer()
    outputs = list[OutputAccuracy]()
    for position, name in enumerate(names):
        pairs = [(w[position], f[position]) for w, f in zip(wanted, found, strict=True)]
        fitting = [(w, f) for w, f in pairs if w.shape == f.shape]
        outputs += [_accuracy(name, fitting)] if fitting else []
        if missing := len(pairs) - len(fitting):
            notes = (*notes, _of_other_shapes(name, missing, len(pairs)))
    right = _right(checks, wanted, found)
    if checks.validation and checks.validation.labels and right is None:
        notes = (*notes, NO_RIGHT_ANSWERS)
    return Verification(tuple(outputs), (), ONNXRUNTIME, len(samples), notes, right)


def _numbers(model: PartlyCompiledModel) -> list[str]:
    """Names of the outputs that are tensors of numbers."""
    kinds = {info.name: info.type for info in model.get_outputs()}
    return [n for n, kind in kinds.items() if kind.startswith("tensor(") and "string" not in kind]


def _right(checks: CheckSamples, wanted: Outputs, found: Outputs) -> RightAnswers | None:
    """The shares of right answers; None where outputs of a sample have other shapes, or fit no
    labels."""
    shapes = ([[array.shape for array in row] for row in rows] for rows in (wanted, found))
    if checks.validation is None or next(shapes) != next(shapes):
        return None
    return checks.validation.right(wanted, found)


def _accuracy(name: str, pairs: Sequence[tuple[Array, Array]]) -> OutputAccuracy:
    """The accuracy of an output, given pairs of arrays of one shape."""
    full = [(w, f) for w, f in pairs if w.size]
    scores = [w.dtype.kind == "f" and class_like(TensorType(DType.F32, w.shape)) for w, _ in full]
    classes = bool(scores) and all(scores)
    return output_accuracy_of(name, [w for w, _ in full], [f for _, f in full], classes)


def _of_other_shapes(name: str, count: int, samples: int) -> str:
    return (
        f"output {name!r} has another shape than in float on {count} of {samples} samples, which "
        "do not count"
    )

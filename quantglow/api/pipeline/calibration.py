"""Stage 2: the profile, the shapes at which everything is decided, and the samples that decide.

``Validation`` is ``validation_data``: samples for the check, with or without labels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from quantglow import profiling
from quantglow.api.models.families import import_at
from quantglow.api.pipeline.request import Imported, QuantizationRequest, computing
from quantglow.api.pipeline.samples import Samples, check_sample, profile_in
from quantglow.evaluation.accuracy import SAME, UNSEEN, VALIDATION, RightAnswers
from quantglow.evaluation.layers import affordable
from quantglow.evaluation.sample_checks import out_of_scale, unlike_training
from quantglow.importer.onnx import open_model
from quantglow.ir.graph.family import Case, Family, LateResults
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.signature import Signature, is_late
from quantglow.ir.symbolic.size import FixedShape
from quantglow.ir.types import TensorType
from quantglow.profiling import Profile
from quantglow.profiling.samples.feeds import Feeds, data_name, is_one, read_feeds, samples_in
from quantglow.profiling.samples.files import as_array, one_line, without_labels
from quantglow.quantization.shape_variants import ShapeVariant
from quantglow.support import debug
from quantglow.support.arrays import Array
from quantglow.support.errors import CalibrationError, OptionError
from quantglow.support.processes.interrupts import say
from quantglow.support.progress import is_shown


@dataclass(frozen=True)
class CheckSamples:
    """Samples on which the result is compared with the float model.

    feeds       those whose outputs are compared; of other late sizes than the case with the graph
                for these (``ShapeVariant``)
    first       samples of the case, for what is measured layer by layer where ``feeds`` has none
    origin      where they are from: ``evaluation.accuracy.SAME``, ``UNSEEN`` or ``VALIDATION``
    validation  the user's own, with their labels
    notes       remarks for the report
    """

    feeds: Sequence[Feeds] = ()
    first: Sequence[Feeds] = ()
    origin: str = SAME
    validation: Validation | None = None
    notes: tuple[str, ...] = ()

    @property
    def of_case(self) -> Sequence[Feeds]:
        """Samples of the case itself, for what is measured layer by layer."""
        return [f for f in self.feeds if not isinstance(f, ShapeVariant)] or self.first


@dataclass(frozen=True)
class Calibrated:
    """A profiled model.

    case         the shapes at which everything is decided: those of most samples
    float_graph  the graph for that case
    samples      the reader of the calibration data; None if there is a profile only
    deciding     samples for all that is decided, where these are few also of other shapes
                 (``shape_variants.ShapeVariant``); None if there is a profile only
    warnings     signs that the data is not what the model was trained on
    """

    imported: Imported
    profile: Profile
    case: Case
    float_graph: Graph
    samples: Samples | None = None
    deciding: Sequence[Feeds] | None = None
    checks: CheckSamples = CheckSamples()
    warnings: tuple[str, ...] = ()

    @property
    def family(self) -> Family:
        """The float graphs, one for each case."""
        return self.imported.family

    @property
    def seconds(self) -> dict[str, float]:
        """Wall time by stage."""
        return self.imported.seconds

    def require_samples(self, measured: str, option: str) -> None:
        """Raise ``CalibrationError`` if there is no sample on which ``option`` can measure."""
        if not self.checks.feeds:
            raise CalibrationError(
                f"a profile holds no samples to measure {measured} on. Remedy: pass the "
                f"calibration samples together with {option}."
            )


def calibrate(imported: Imported, request: QuantizationRequest) -> Calibrated:
    """Profile the model on the request's samples, or take the profile that they are."""
    family, data = imported.family, imported.data
    validation = None
    if request.validation_data is not None:
        validation = Validation.of(request.validation_data, family.signature)
    recorded = profile_in(data)
    samples = Samples(
        data,
        family,
        request.subset_size,
        holds_out=request.holds_out and validation is None,
        seed=request.config.seed,
    )
    with debug.time_stage("profile", imported.seconds), computing(request.config.profile_with):
        profile = recorded or profiling.profile(
            family,
            samples,
            subset_size=request.subset_size,
            progress=request.progress,
            run=samples.run,
        )
    case = _main_case(family, profile)
    graph = family.graph_at(case)
    checks, reader, deciding, warnings = CheckSamples(), None, None, tuple[str, ...]()
    if recorded is None:
        reader = samples
        same, deciding = samples.deciding(case, graph)
        unseen = samples.unseen(case)
        if unseen:
            checks = CheckSamples(affordable(unseen, graph), same, UNSEEN)
        else:
            checks = CheckSamples(samples.checking(case) if case.late else same, same)
        if request.verify:
            warnings = _data_warnings(imported, samples, case, graph, request.progress)
    if validation is not None:
        checks = _validating(checks, validation, case, family)
        if checks.validation and family.late_results is not LateResults.SYMBOLIC:
            checks.validation.check(graph)
    return Calibrated(imported, profile, case, graph, reader, deciding, checks, warnings)


def _validating(
    checks: CheckSamples, validation: Validation, case: Case, family: Family
) -> CheckSamples:
    """The check on the user's samples of ``case``; on ``checks`` if there are none of it."""
    fitting, notes = validation.at(case, family), checks.notes
    if missing := len(validation.samples) - len(fitting.samples):
        notes += (
            f"{missing} of {len(validation.samples)} samples of validation_data have "
            f"other shapes than the program that is checked ({case})",
        )
    if not fitting.samples:
        return replace(checks, validation=fitting, notes=notes)
    return CheckSamples(fitting.samples, checks.first, VALIDATION, fitting, notes)


def _data_warnings(
    imported: Imported, samples: Samples, case: Case, graph: Graph, progress: bool | str
) -> tuple[str, ...]:
    """Signs that the samples are not what the model was trained on, shown as they are found.

    ``graph``: the optimized graph of the case.
    """
    warnings, fitting = samples.checks.warnings(), samples.fitting(case)[1]
    unlike: list[str] = []
    if not isinstance(imported.model, Graph):
        unlike = unlike_training(_as_imported(imported, case), fitting)
    warnings += unlike or out_of_scale(graph, fitting)
    if is_shown(progress):
        for warning in warnings:
            say(f"warning: {warning}")
    return tuple(warnings)


def _as_imported(imported: Imported, case: Case) -> Graph:
    """The graph of a case before it is optimized."""
    return import_at(open_model(imported.model), imported.family, case)


def _main_case(family: Family, profile: Profile) -> Case:
    """The only shapes, else those of most data, else batch 1.

    Raises ``OptionError`` where other dimensions are free and nothing tells their sizes.
    """
    shapes = family.signature.default
    if profile.main_cases and not family.is_single:
        return profile.main_cases[0]
    if shapes is None or family.deciding:
        ports = ", ".join(f"{port.name}: {port}" for port in family.signature.inputs)
        raise OptionError(
            f"the model leaves dimensions free ({ports}) and the profile does not tell the shapes "
            "it ran at. Remedy: profile the model again, or pass input_shapes."
        )
    return Case.of(shapes)


@dataclass(frozen=True)
class LabeledOutput:
    """Shape and kind of an output."""

    shape: FixedShape
    is_integer: bool

    @staticmethod
    def of(kind: TensorType) -> LabeledOutput:
        """The output of a type; strings and opaque values answer nothing."""
        if kind.dtype.is_object:
            return LabeledOutput((0,), is_integer=False)
        return LabeledOutput(kind.fixed_shape, not kind.dtype.is_float)

    @property
    def answers(self) -> int:
        """Number of answers: one for each row, and for a vector of indices one for each."""
        return prod(self.shape[:-1]) if len(self.shape) > 1 else prod(self.shape)


@dataclass(frozen=True)
class Validation:
    """Samples of one model batch each, and the labels of each, if there are any."""

    samples: list[Feeds]
    labels: list[Array] | None = None

    @staticmethod
    def of(data: Any, signature: Signature) -> Validation:
        """Samples as calibration takes them; those with labels have the index of the right class
        for each row, see ``quantglow.profiling.samples.files``.  Raises ``CalibrationError``.
        """
        labels = list[Any]()
        names = [port.name for port in signature.inputs]
        samples, owners = list[Feeds](), list[int]()
        called = data_name(data, "the validation data")
        for feeds in read_feeds(_strip_labels(data, names, labels), signature, called):
            samples.append(feeds)
            owners.append(len(labels) - 1)
        if not samples:
            raise CalibrationError("validation_data holds no samples. Remedy: pass at least one.")
        labeled = [labels is not None for labels in labels]
        if any(labeled) != all(labeled):
            raise CalibrationError(
                f"sample {labeled.index(False)} of validation_data has no 'labels', others "
                "have. Remedy: label all of them or none."
            )
        if not any(labeled):
            return Validation(samples)
        counts = [owners.count(index) for index in range(len(labels))]
        cut = [_cut(labels, n, i) for i, (labels, n) in enumerate(zip(labels, counts, strict=True))]
        return Validation(samples, [labels for sample_labels in cut for labels in sample_labels])

    def at(self, case: Case, family: Family) -> Validation:
        """The samples of a case."""
        checked = ((i, check_sample(feeds, case, family)) for i, feeds in enumerate(self.samples))
        fitting = {index: feeds for index, feeds in checked if feeds is not None}
        labels = None if self.labels is None else [self.labels[index] for index in fitting]
        return Validation(list(fitting.values()), labels)

    def check(self, graph: Graph) -> None:
        """Raise ``CalibrationError`` for labels that are of no output of the graph, or of no class
        of that output; a run tells that of late outputs."""
        if not self.labels or any(is_late(port.declared) for port in graph.signature.outputs):
            return
        ends = [LabeledOutput.of(node.type) for _, node in graph.outputs]
        position = self.position(ends)
        if position is None:
            shapes = [end.shape for end in ends]
            raise CalibrationError(
                f"validation_data has {self.labels[0].size} label(s) a batch, but no output has "
                f"one row of class scores for each: {shapes}. Remedy: give one class index a row, "
                "or leave the labels out."
            )
        if ends[position].is_integer:  # a network that gives indices does not tell its classes
            return
        name, _ = graph.outputs[position]
        for index, labels in enumerate(self.labels):
            check_classes(
                labels, ends[position].shape[-1], f"sample {index} of validation_data", name
            )

    def position(self, ends: Sequence[LabeledOutput]) -> int | None:
        """The first output with an answer for each label.

        That is scores of classes, the indices beside them if there are any of their shape (TopK),
        or else class indices.
        """
        assert self.labels
        size = self.labels[0].size
        fitting = [i for i, end in enumerate(ends) if end.answers == size]
        indices = [i for i in fitting if ends[i].is_integer]
        for i in fitting:
            if len(ends[i].shape) > 1 and ends[i].shape[-1] > 1 and not ends[i].is_integer:
                return next((j for j in indices if ends[j].shape == ends[i].shape), i)
        return next(iter(indices), None)

    def right(
        self, expected: Sequence[Sequence[Array]], results: Sequence[Sequence[Array]]
    ) -> RightAnswers | None:
        """Shares of the labels that both models find; None without labels, and where outputs have
        other shapes than in float."""
        if not self.labels or not expected or _shapes(expected) != _shapes(results):
            return None
        position = self.position(
            [LabeledOutput(a.shape, a.dtype.kind in "iu") for a in expected[0]]
        )
        if position is None:
            return None
        labels = np.concatenate(
            [sample_labels.reshape(-1) for sample_labels in self.labels[: len(expected)]]
        )
        shares = [
            float(np.mean(np.concatenate([_answers(r[position]) for r in results]) == labels))
            for results in (expected, results)
        ]
        return RightAnswers(labels.size, *shares)


def _shapes(rows: Sequence[Sequence[Array]]) -> list[list[FixedShape]]:
    return [[array.shape for array in arrays] for arrays in rows]


def check_classes(labels: Array, classes: int, whose: str, output: str) -> None:
    """Raise ``CalibrationError`` for labels outside of the classes 0, 1, … of an output."""
    wrong = labels[(labels < 0) | (labels >= classes)]
    if wrong.size:
        raise CalibrationError(
            f"{whose} has the label {wrong.flat[0]}, but output {output!r} has scores of "
            f"{classes} classes, 0 to {classes - 1}. Remedy: count classes from 0, or leave the "
            "labels out."
        )


def _answers(output: Array) -> Array:
    """The class of each row: its largest score; of indices, which come best first, the first."""
    if output.dtype.kind not in "iu":
        return np.reshape(output.argmax(-1), -1)
    return np.reshape(output[..., 0] if output.ndim > 1 else output, -1)


def _strip_labels(data: Any, names: Sequence[str], labels: list[Any]) -> Any:
    """The data without labels, which go to ``labels``, None for a sample that has none."""

    def samples() -> Iterator[Any]:
        for sample in samples_in(data, names):
            inputs, answers = without_labels(sample, names)
            labels.append(None if answers is None else _labels(answers, len(labels)))
            yield inputs

    return next(iter(samples())) if is_one(data) else samples()


def _labels(value: Any, index: int) -> Array:
    """A copy of the labels of a sample.  Raises ``CalibrationError``."""
    try:
        array = as_array(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise _wrong_labels(index, one_line(error)) from error
    if array.dtype.kind not in "iu" or not array.size:
        raise _wrong_labels(index, f"{array.dtype} of shape {array.shape}")
    return np.array(array, ndmin=1)


def _cut(labels: Array, batches: int, index: int) -> list[Array]:
    """The labels of each batch of a sample."""
    if len(labels) % batches:
        raise _wrong_labels(index, f"{len(labels)} for {batches} batches")
    return np.split(labels, batches)


def _wrong_labels(index: int, actual: str) -> CalibrationError:
    return CalibrationError(
        f"the labels of sample {index} of validation_data do not fit: {actual}. "
        "Remedy: give integers, one class index for each row of the inputs."
    )

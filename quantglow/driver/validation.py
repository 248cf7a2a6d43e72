"""``validation_data``: samples for the check, with or without labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from quantglow.data.array_files import one_line
from quantglow.data.samples import as_array, without_labels
from quantglow.errors import CalibrationError
from quantglow.foreign_types import Array
from quantglow.graph.case import Case
from quantglow.graph.family import Family
from quantglow.graph.graph import Graph
from quantglow.graph.signature import Signature
from quantglow.profiling.data import Feeds, feeds_of, is_one, name_of, samples_in
from quantglow.report.accuracy.headline import RightAnswers


@dataclass(frozen=True)
class End:
    """Shape and kind of an output."""

    shape: tuple[int, ...]
    is_integer: bool

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
        for each row, see ``quantglow.data.samples``.  Raises ``CalibrationError``.
        """
        given = list[Any]()
        names = [port.name for port in signature.inputs]
        samples, owners = list[Feeds](), list[int]()
        called = name_of(data, "the validation data")
        for feeds in feeds_of(_unlabelled(data, names, given), signature, called):
            samples.append(feeds)
            owners.append(len(given) - 1)
        if not samples:
            raise CalibrationError("validation_data holds no samples. Remedy: pass at least one.")
        labelled = [labels is not None for labels in given]
        if any(labelled) != all(labelled):
            raise CalibrationError(
                f"sample {labelled.index(False)} of validation_data has no 'labels', others "
                "have. Remedy: label all of them or none."
            )
        if not any(labelled):
            return Validation(samples)
        counts = [owners.count(index) for index in range(len(given))]
        cut = [_cut(labels, n, i) for i, (labels, n) in enumerate(zip(given, counts, strict=True))]
        return Validation(samples, [labels for own in cut for labels in own])

    def at(self, case: Case, family: Family) -> Validation:
        """The samples of a case."""
        places = [
            index
            for index, feeds in enumerate(self.samples)
            if Case.fitting(feeds, family.deciding) == case
        ]
        labels = None if self.labels is None else [self.labels[index] for index in places]
        return Validation([self.samples[index] for index in places], labels)

    def check(self, graph: Graph) -> None:
        """Raise ``CalibrationError`` for labels that are of no output of the graph, or of no class
        of that output."""
        if not self.labels:
            return
        ends = [End(node.type.shape, not node.type.dtype.is_float) for _, node in graph.outputs]
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

    def position(self, ends: Sequence[End]) -> int | None:
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
        self, wanted: Sequence[Sequence[Array]], found: Sequence[Sequence[Array]]
    ) -> RightAnswers | None:
        """Shares of the labels that both models find; None without labels."""
        if not self.labels or not wanted:
            return None
        position = self.position([End(a.shape, a.dtype.kind in "iu") for a in wanted[0]])
        if position is None:
            return None
        labels = np.concatenate([own.reshape(-1) for own in self.labels[: len(wanted)]])
        shares = [
            float(np.mean(np.concatenate([_answers(r[position]) for r in results]) == labels))
            for results in (wanted, found)
        ]
        return RightAnswers(labels.size, *shares)


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


def _unlabelled(data: Any, names: Sequence[str], labels: list[Any]) -> Any:
    """The data without labels, which go to ``labels``, None for a sample that has none."""

    def taken() -> Iterator[Any]:
        for sample in samples_in(data, names):
            rest, own = without_labels(sample, names)
            labels.append(None if own is None else _labels(own, len(labels)))
            yield rest

    return next(iter(taken())) if is_one(data) else taken()


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


def _wrong_labels(index: int, found: str) -> CalibrationError:
    return CalibrationError(
        f"the labels of sample {index} of validation_data do not fit: {found}. "
        "Remedy: give integers, one class index for each row of the inputs."
    )

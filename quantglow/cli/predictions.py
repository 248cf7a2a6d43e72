"""Answers in the first output of a network; recipes compare them with labels and with float's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from quantglow import frontend
from quantglow.driver.validation import check_classes
from quantglow.errors import CalibrationError, ModelError
from quantglow.foreign_types import Array
from quantglow.graph.graph import Graph

Reader = Callable[[Array], Any]
"""The first output for one sample -> its answer."""

CHARACTERS = "character"
"""Entry of a model's metadata: characters of its classes from 1 on, one a line (PaddleOCR)."""


def largest(model: Path) -> Reader:
    """The index of the largest score."""
    del model
    return lambda scores: int(np.argmax(scores))


def text(model: Path) -> Reader:
    """The text of every sample, by CTC: the best class of each step, without repetitions and class
    0.

    The output is [..., steps, classes].  Raises ``ModelError`` if the model does not name its
    classes.
    """
    listed = frontend.open_model(model).metadata.get(CHARACTERS)
    if listed is None:
        raise ModelError(
            f"the model {str(model)!r} has no entry {CHARACTERS!r} in its metadata. Remedy: add "
            'one, the characters of classes 1, 2, … one a line, or use model.answers = "class".'
        )
    characters = ["", *listed.splitlines(), " "]

    def read(scores: Array) -> str:
        if scores.shape[-1] != len(characters):
            raise ModelError(
                f"the model {str(model)!r} has {scores.shape[-1]} classes, but its metadata "
                f"{len(characters) - 2} characters, to which nothing and the space are added."
            )
        classes = scores.reshape(-1, scores.shape[-1]).argmax(-1)
        fresh = np.diff(classes, prepend=0) != 0
        return "".join(characters[index] for index in classes[fresh])

    return read


READERS: dict[str, Callable[[Path], Reader]] = {"class": largest, "text": text}

LABELS = {"class": ("iu", "the index of a class, an integer,"), "text": ("U", "one text")}
"""Kinds of arrays that may hold labels, and what a label is."""


def check_labels(labels: Array | None, answers: str, graph: Graph) -> None:
    """Raise ``CalibrationError`` for labels that can never be equal to such answers of the graph's
    first output."""
    kinds, wanted = LABELS[answers]
    if labels is not None and (labels.dtype.kind not in kinds or labels.ndim != 1):
        raise CalibrationError(
            f"labels of {labels.dtype} and shape {labels.shape} are never equal to answers of kind "
            f"{answers!r}. Remedy: {wanted} for each image."
        )
    if labels is not None and answers == "class":
        name, scores = graph.outputs[0]
        check_classes(labels, prod(scores.type.shape), "the evaluation data", name)


def same(answers: Sequence[Any], others: Sequence[Any]) -> float:
    """Share of answers that are equal."""
    return float(np.mean([one == other for one, other in zip(answers, others, strict=True)]))

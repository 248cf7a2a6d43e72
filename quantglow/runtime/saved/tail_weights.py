"""Weights of a tail that the int8 models in its file have: they are stored once.

Where nothing arrives behind the first nodes of a tail, onnxruntime runs all of it, with the weights
that the file gives: the same before it is saved and after it is loaded.

The rest of a tail may have a tail, and so on: weights that the innermost one has, as floats or
codes, are those of all tails around it.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from quantglow.importer.onnx import restore, stored_tail
from quantglow.runtime.saved.saving import SavedTail
from quantglow.support.errors import FileFormatError, QuantglowError
from quantglow.support.files import DAMAGED_CONTENT


def light_tail(tail: SavedTail, rounded: Container[str]) -> SavedTail:
    """The tail without the weights that its files have; only those ``rounded`` may differ from the
    ones in its model, by half a step of int8.
    """
    model, places = stored_tail(tail.model, tail.constants, rounded)
    return replace(tail, model=model, weights=places)


def whole_tail(tail: SavedTail) -> bytes:
    """The model of a tail with all of its weights.  Raises ``FileFormatError``."""
    if not tail.weights:
        return tail.model
    try:
        return restore(tail.model, tail.weights, tail.constants).serialize()
    except FileFormatError:
        raise
    except (*DAMAGED_CONTENT, QuantglowError) as error:
        raise FileFormatError(
            f"the weights of the tail are damaged: {error!r}. Remedy: save the model again."
        ) from error

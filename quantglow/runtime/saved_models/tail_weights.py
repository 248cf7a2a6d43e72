"""Weights of a tail that the int8 models in its file have: they are stored once.

Where nothing arrives behind the first nodes of a tail, onnxruntime runs all of it, with the weights
that the file gives: the same before it is saved and after it is loaded.

The rest of a tail may have a tail, and so on: weights that the innermost one has, as floats or
codes, are those of all tails around it.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import replace

from quantglow.errors import FileFormatError, QuantglowError
from quantglow.files import DAMAGED_CONTENT
from quantglow.frontend import own_constants, restored, stored_tail
from quantglow.graph.node import Constant
from quantglow.runtime.saved_models.archives import TAIL
from quantglow.runtime.saved_models.saving import Tail


def light_tail(tail: Tail, rounded: Container[str]) -> Tail:
    """The tail without the weights that its files have; only those ``rounded`` may differ from the
    ones in its model, by half a step of int8.
    """
    model, places = stored_tail(tail.model, tail.constants, rounded)
    return replace(tail, model=model, weights=places)


def whole_tail(tail: Tail) -> bytes:
    """The model of a tail with all of its weights.  Raises ``FileFormatError``."""
    if not tail.weights:
        return tail.model
    try:
        return restored(tail.model, tail.weights, tail.constants).serialized()
    except FileFormatError:
        raise
    except (*DAMAGED_CONTENT, QuantglowError) as error:
        raise FileFormatError(
            f"the weights of the tail are damaged: {error!r}. Remedy: save the model again."
        ) from error


def constants_of(tail: Tail) -> Iterator[Constant]:
    """Constants of the main graphs of the files of a tail, and those of the tails in these; names
    begin with those of the files.  Raises one of ``DAMAGED_CONTENT`` or a ``QuantglowError``.
    """
    for member, saved in tail.files.items():
        for node in saved.graph.nodes:
            if isinstance(node, Constant):
                yield replace(node, name=f"{member}/{node.name}")
        if saved.tail is not None:
            for node in (*saved.tail.constants, *tensors_of(saved.tail)):
                yield replace(node, name=f"{member}/{node.name}")


def tensors_of(tail: Tail) -> Iterator[Constant]:
    """Weights that the model of a tail has itself."""
    for node in own_constants(tail.model, tail.weights):
        yield replace(node, name=f"{TAIL}/{node.name}")

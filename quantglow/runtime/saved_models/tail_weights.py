"""Weights of a tail that the int8 models in its file have: they are stored once.

Where nothing arrives behind the first nodes of a tail, onnxruntime runs all of it, with the weights
that the file gives: the same before it is saved and after it is loaded.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Container, Iterator
from dataclasses import replace

from quantglow.errors import FileFormatError, QuantglowError
from quantglow.files import DAMAGED_CONTENT
from quantglow.frontend import restored, stored_tail
from quantglow.graph.node import Constant
from quantglow.runtime.saved_models.archives import BODY, REST
from quantglow.runtime.saved_models.saving import Tail, read

MOST_DEPTH = 8
"""Maximum number of files inside of each other whose weights are looked at."""


def light_tail(tail: Tail, rounded: Container[str]) -> Tail:
    """The tail without the weights that its files have; only those ``rounded`` may differ from the
    ones in its model, by half a step of int8.
    """
    model, places = stored_tail(tail.model, list(constants_of(tail)), rounded)
    return replace(tail, model=model, weights=places)


def whole_tail(tail: Tail) -> bytes:
    """The model of a tail with all of its weights.  Raises ``FileFormatError``."""
    if not tail.weights:
        return tail.model
    try:
        return restored(tail.model, tail.weights, list(constants_of(tail))).serialized()
    except (*DAMAGED_CONTENT, AttributeError, QuantglowError) as error:
        raise FileFormatError(
            f"the weights of the tail are damaged: {error!r}. Remedy: save the model again."
        ) from error


def constants_of(tail: Tail, prefix: str = "", depth: int = 0) -> Iterator[Constant]:
    """Constants of the main graphs of the files of a tail, and of files in these; names begin with
    those of the files.
    """
    for member, data in ((REST, tail.rest), (BODY, tail.body)):
        if not data or depth == MOST_DEPTH:
            continue
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            saved = read(archive)
        for node in saved.graph.nodes:
            if isinstance(node, Constant):
                yield replace(node, name=f"{prefix}{member}/{node.name}")
        if saved.tail is not None:
            yield from constants_of(saved.tail, f"{prefix}{member}/", depth + 1)

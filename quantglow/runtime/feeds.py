"""Arguments of ``run``: names of outputs, and arrays for inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from quantglow.arguments import strings
from quantglow.errors import InputError
from quantglow.foreign_types import array_of_tensor, is_torch_tensor
from quantglow.types import Array


def chosen_outputs(output_names: Sequence[str] | None, known: list[str]) -> list[str]:
    """The outputs to return; None stands for all.  Raises ``InputError`` for unknown names."""
    if output_names is None:
        return known
    wanted = list(strings(output_names, "output_names"))
    if unknown := [name for name in wanted if name not in known]:
        raise InputError(f"unknown output(s) {unknown}; the model has {known}")
    return wanted


def check_mapping(feeds: object) -> None:
    """Raise ``InputError`` for feeds that are not a mapping."""
    if not isinstance(feeds, Mapping):
        raise InputError(
            f"feeds must map input names to arrays, got {type(feeds).__name__}. "
            "Remedy: run(None, {name: array}), or call the model with arrays"
        )


def feeds_by_name(
    names: list[str], arrays: Sequence[Any], named: Mapping[str, Any]
) -> dict[str, Any]:
    """Feeds of a call with arrays by position and by name.  Raises ``InputError``."""
    if len(arrays) > len(names):
        raise InputError(f"{len(arrays)} arrays given, the model takes {len(names)}: {names}")
    feeds = dict(zip(names, arrays, strict=False))
    if twice := sorted(feeds.keys() & named.keys()):
        raise InputError(f"input(s) {twice} given both by position and by name")
    return {**feeds, **named}


def as_array(name: str, value: Any) -> Array:
    """A feed as an array; of a ``torch.Tensor`` without a copy.  Raises ``InputError``."""
    if not isinstance(value, np.ndarray) and is_torch_tensor(value):
        return array_of_tensor(value)
    if isinstance(value, np.ma.MaskedArray):
        raise InputError(
            f"input {name!r} is a masked array, whose hidden values would count. "
            "Remedy: give its filled(number)."
        )
    try:
        return np.asarray(value)
    except ValueError as error:
        raise InputError(f"input {name!r} is no array: {error}") from None


def arrays_of(feeds: Mapping[str, Any]) -> dict[str, Array]:
    """Feeds as arrays, by name.  Raises ``InputError``."""
    check_mapping(feeds)
    return {name: as_array(name, value) for name, value in feeds.items()}


def fed(name: str, value: Any) -> Any:
    """A tensor as an array; lists stay sequences of tensors, None an absent optional."""
    if value is None:
        return None
    if isinstance(value, list):
        return [fed(name, item) for item in value]
    return as_array(name, value)

"""Arguments of the public functions, checked: each function gives the argument in one type, or
raises ``OptionError`` with the argument's name, what was given and what is wanted.
"""

from __future__ import annotations

import inspect
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from functools import wraps
from numbers import Integral, Real
from typing import Any, Literal, ParamSpec, TypeGuard, TypeVar

import numpy as np

from quantglow.support.errors import OptionError

SHOWN = 80
"""Characters of a wrong argument that a message shows."""

Given = ParamSpec("Given")
Result = TypeVar("Result")
Kind = TypeVar("Kind")


def options_named(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Decorator: a keyword that there is not raises an ``OptionError``, which names the nearest."""
    options = inspect.signature(function).parameters
    title = function.__qualname__.removesuffix(".__init__")

    @wraps(function)
    def checked(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        for name in kwargs:
            if name not in options:
                raise no_option(title, name, options)
        return function(*args, **kwargs)

    return checked


def fields_named(kind: type[Kind]) -> type[Kind]:
    """Class decorator: the same for its constructor."""
    type.__setattr__(kind, "__init__", options_named(kind.__init__))
    return kind


def no_option(title: str, name: str, options: Iterable[str]) -> OptionError:
    """The error for a keyword that does not exist."""
    near = get_close_matches(name, sorted(options), 1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    return OptionError(f"{title} has no option {name!r}{hint} Remedy: help({title}) lists all.")


def choice(option: str, value: Any, allowed: Iterable[str]) -> str:
    """``value`` if it is one of ``allowed``.  Names a near miss."""
    choices = list(allowed)
    if isinstance(value, str) and value in choices:
        return value
    near = get_close_matches(value, choices, 1) if isinstance(value, str) else []
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise OptionError(f"{option} must be one of {choices}, got {brief(value)}{hint}")


def is_series(value: Any) -> TypeGuard[Iterable[Any]]:
    """Whether a value has elements one after the other, unlike texts, mappings and arrays without
    axes."""
    if isinstance(value, str | bytes | Mapping):
        return False
    try:
        iter(value)
    except TypeError:
        return False
    return True


def strings(values: Any, option: str) -> tuple[str, ...]:
    """A tuple of strings from one string, several, or None; those of a set are sorted."""
    if values is None:
        return ()
    if isinstance(values, str):
        return (values,)
    if not is_series(values):
        raise OptionError(f"{option} takes a string or a list of strings, got {brief(values)}")
    texts = tuple(values)
    for value in texts:
        if not isinstance(value, str):
            raise OptionError(f"{option} takes strings, got {brief(value)}")
    return tuple(sorted(texts)) if isinstance(values, set | frozenset) else texts


def flag(option: str, value: Any) -> bool:
    """True or False; a number or a text is a mistake."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise OptionError(f"{option} must be True or False, got {brief(value)}")


def integer(option: str, value: Any, least: int = 0, most: int | None = None) -> int:
    """An integer from ``least`` to ``most``, of Python or NumPy; True is none."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise OptionError(f"{option} must be an integer, got {brief(value)}")
    converted = int(value)
    if converted < least:
        raise OptionError(f"{option} must be at least {least}, got {brief(converted)}")
    if most is not None and converted > most:
        raise OptionError(f"{option} must be at most {most}, got {brief(converted)}")
    return converted


def count(option: str, value: Any) -> int:
    """An integer from 1 to what may be the length of anything."""
    return integer(option, value, 1, sys.maxsize)


def number(option: str, value: Any) -> float:
    """A number that a float holds, or infinity, of Python or NumPy; neither NaN nor True."""
    try:
        converted = float(value) if isinstance(value, Real) else math.nan
    except OverflowError:
        converted = math.nan
    if isinstance(value, bool) or math.isnan(converted):
        raise OptionError(f"{option} must be a number, got {brief(value)}")
    return converted


def positive(option: str, value: Any) -> float:
    """A number above zero."""
    converted = number(option, value)
    if not converted > 0:
        raise OptionError(f"{option} must be positive, got {converted:g}")
    return converted


def limit(variable: str, text: str) -> float:
    """A limit from an environment variable, above zero; ``inf`` is none."""
    try:
        converted = float(text)
    except ValueError:
        converted = math.nan
    if not converted > 0:
        raise OptionError(f"{variable}={text!r} is no positive number. Remedy: unset it.")
    return converted


def file_path(option: str, value: Any) -> str:
    """A path as text.

    ``open`` also takes integers (and so True), as a file that is open already; they are refused.
    """
    path = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(path, str) or not path or "\0" in path:
        raise OptionError(f"{option} must be a path (str or os.PathLike), got {brief(value)}")
    return path


def progress_mode(option: str, value: Any) -> bool | Literal["auto"]:
    """Whether to show progress bars: True, False, or "auto" for where there is a terminal."""
    if isinstance(value, str) and value == "auto":
        return "auto"
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise OptionError(f"{option} must be True, False or 'auto', got {brief(value)}")


def shapes(option: str, value: Any) -> dict[str, tuple[int, ...]] | None:
    """Sizes, each at least 1, by the names of inputs; None stays None."""
    if value is None:
        return None
    return {
        name: tuple(integer(entry, size, 1) for size in _items(entry, dims))
        for name, entry, dims in _entries(option, value)
    }


def elements(option: str, value: Any) -> dict[str, tuple[int, ...]] | None:
    """Elements of inputs by name, integers or conditions; None stays None."""
    if value is None:
        return None
    result = {}
    for name, entry, content in _entries(option, value):
        items = [content] if isinstance(content, Integral) else _items(entry, content)
        bits = (int(item) if isinstance(item, bool | np.bool_) else item for item in items)
        result[name] = tuple(integer(entry, item, -(2**63), 2**63 - 1) for item in bits)
    return result


def _entries(option: str, value: Any) -> list[tuple[str, str, Any]]:
    """Name, how a message calls the entry, and the entry, of a mapping."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise OptionError(f"{option} must map names of inputs to integers, got {brief(value)}")
    return [(name, f"{option}[{name!r}]", entry) for name, entry in value.items()]


def _items(entry: str, value: Any) -> list[Any]:
    if isinstance(value, np.ndarray):
        return list(value.reshape(-1))
    if not is_series(value):
        raise OptionError(f"{entry} must be a list of integers, got {brief(value)}")
    return list(value)


def items(option: str, value: Any, expected: str) -> Iterable[Any]:
    """``value`` if it is a list, or another series, of what is ``expected``."""
    if not is_series(value):
        raise OptionError(f"{option} must be a list of {expected}, got {brief(value)}")
    return value


def instance(option: str, value: Any, kind: type[Any], expected: str) -> Any:
    """``value`` if it is a ``kind``."""
    if isinstance(value, kind):
        return value
    raise OptionError(f"{option} must be {expected}, got {brief(value)}")


def brief(value: Any) -> str:
    """Name of a wrong argument in a message: never longer than a line, never failing."""
    if isinstance(value, Integral) and abs(int(value)) >= 10**40:
        return "an integer of more than 40 digits"  # Python refuses to print those of thousands.
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a stranger's __repr__ must not hide the message
        text = "an object"
    text = " ".join(text.split())
    short = text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"
    plain = value is None or type(value) in (bool, int, float)
    return short if plain else f"{short} ({type(value).__name__})"

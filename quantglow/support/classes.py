"""Helpers of classes: attributes computed on first use, short reprs, no pickling.

Programs, histograms and scales of channels hold much: their ``repr`` has the first entries.
Objects with machine code, memory or threads of this process cannot go to another one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from reprlib import Repr
from typing import Any, Generic, TypeVar, overload

from quantglow.support.errors import OptionError

MAX_CHARACTERS = 900
"""Maximum length of a ``repr``."""

_SHORT = Repr()
_SHORT.maxlevel = 2
_SHORT.maxstring = _SHORT.maxother = 80

Owner = TypeVar("Owner")
Value = TypeVar("Value")


class Concise:
    """Base of a dataclass with ``repr=False``: its ``repr`` has the first entries of each field."""

    __slots__ = ()

    def __repr__(self) -> str:
        instance: Any = self
        shown = ", ".join(
            f"{field.name}={_SHORT.repr(getattr(self, field.name))}"
            for field in fields(instance)
            if field.repr
        )
        text = f"{type(self).__name__}({shown})"
        return text if len(text) <= MAX_CHARACTERS else text[: MAX_CHARACTERS - 2] + "…)"


class cached_property(Generic[Owner, Value]):
    """``functools.cached_property`` without a lock.

    That of Python 3.11 holds one lock for all instances while it computes: threads wait for the
    values of other objects, and a process that is forked meanwhile waits for ever.  Here two
    threads may compute a value at once; all of them get the one that was stored first.
    """

    def __init__(self, function: Callable[[Owner], Value]) -> None:
        self.function = function
        self.name = function.__name__
        self.__doc__ = function.__doc__

    @overload
    def __get__(self, owner: None, kind: type[Any]) -> cached_property[Owner, Value]: ...

    @overload
    def __get__(self, owner: Owner, kind: type[Any]) -> Value: ...

    def __get__(
        self, owner: Owner | None, kind: type[Any]
    ) -> cached_property[Owner, Value] | Value:
        if owner is None:
            return self
        # Instances of frozen classes have no setattr; the dictionary hides this descriptor.
        value: Value = owner.__dict__.setdefault(self.name, self.function(owner))
        return value


class Hashed:
    """Base of frozen classes whose hash is computed once, as their ``_hash``.

    Other processes get no hash: that of text differs between them.
    """

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_hash"}


class OfOneProcess:
    """Base class of objects with machine code, memory and threads of this process."""

    def __reduce__(self) -> tuple[Any, ...]:
        raise OptionError(
            f"{type(self).__name__}: cannot be pickled or copied, because machine code and memory "
            "belong to this process. Remedy: load() or compile the model in the other process; the "
            "threads of a process share one model."
        )

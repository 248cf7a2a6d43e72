"""Attributes computed on first use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

Owner = TypeVar("Owner")
Value = TypeVar("Value")


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

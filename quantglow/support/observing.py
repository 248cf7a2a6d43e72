"""Observers of runs: they are shown each graph and each ONNX model that a block of code runs.

A model may have many parts, some of them behind values that nobody knows before a run.  Each part
reports itself when it runs, so an observer needs to know nothing about how a model was cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol


class Observer(Protocol):
    """Takes note of the parts of a model that run."""

    def saw_graph(self, graph: Any, feeds: Mapping[str, Any]) -> None:
        """A compiled graph runs; operators of it that onnxruntime runs are shown as models."""

    def saw_model(self, model: bytes, feeds: Mapping[str, Any]) -> None:
        """onnxruntime runs an ONNX model."""


_OBSERVER: ContextVar[Observer | None] = ContextVar("quantglow_observer", default=None)


def observer() -> Observer | None:
    """The observer of the block around, if there is one."""
    return _OBSERVER.get()


@contextmanager
def observing(by: Observer | None) -> Iterator[None]:
    """Show an observer the parts that the block runs; None: nobody, inside of an observed block."""
    token = _OBSERVER.set(by)
    try:
        yield
    finally:
        _OBSERVER.reset(token)

"""Views: how results print and draw themselves.

Figures, graphs and models lie below ``report``, which knows how to show them.  The package names
the view of each class in ``VIEWS``; it is imported when an object is shown, so that a process that
shows nothing imports no tables and no pages.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

VIEWS: dict[str, str] = {}
"""Dotted name of a class -> dotted name of the function or class that makes its view."""


def show(value: object) -> Any:
    """The view of an object: its ``str`` is the text, its ``_repr_html_()`` the drawing.

    Subclasses have the view of their nearest base that has one.  Raises ``StopIteration`` if there
    is none.
    """
    names = (f"{kind.__module__}.{kind.__qualname__}" for kind in type(value).__mro__)
    module, _, view = next(VIEWS[name] for name in names if name in VIEWS).rpartition(".")
    return getattr(import_module(module), view)(value)


class HasText:
    """Base of objects whose text is that of their view."""

    __slots__ = ()

    def __str__(self) -> str:
        return str(show(self))


class HasDrawing:
    """Base of objects that a notebook shows by the drawing of their view."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        """The drawing of the object, in a notebook."""
        drawing: str = show(self)._repr_html_()
        return drawing


class HasView(HasText, HasDrawing):
    """Base of results with a view of tables: in a terminal, in a notebook, on a rich console."""

    __slots__ = ()

    def __rich__(self) -> Any:
        return show(self)

"""Arrays, and values of other frameworks, recognized by names of types without an import.

Views: how results print and draw themselves.

Figures, graphs and models lie below ``report``, which knows how to show them.  The package names
the view of each class in ``VIEWS``; it is imported when an object is shown, so that a process that
shows nothing imports no tables and no pages.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def _is_a(value: Any, module: str, name: str) -> bool:
    """Whether a value is of the class ``name`` that ``module`` defines, or of a subclass."""
    kinds = type(value).__mro__
    return any(k.__name__ == name and k.__module__ == module for k in kinds)


def is_torch_tensor(value: Any) -> bool:
    """Whether a value is a ``torch.Tensor``."""
    return _is_a(value, "torch", "Tensor")


def is_torch_module(value: Any) -> bool:
    """Whether a value is a ``torch.nn.Module``."""
    return _is_a(value, "torch.nn.modules.module", "Module")


def is_exported_program(value: Any) -> bool:
    """Whether a value is a ``torch.export.ExportedProgram``."""
    return _is_a(value, "torch.export.exported_program", "ExportedProgram")


def is_estimator(value: Any) -> bool:
    """Whether a value is an estimator or pipeline of scikit-learn."""
    return _is_a(value, "sklearn.base", "BaseEstimator")


def array_of_tensor(tensor: Any) -> Array:
    """The elements of a ``torch.Tensor``, without a copy where they are in the processor's memory.

    bfloat16, which NumPy has not, is that of ``ml_dtypes``.
    """
    held = tensor.detach().cpu()
    if str(held.dtype) != "torch.bfloat16":
        return np.asarray(held.numpy())
    bits = held.view(sys.modules["torch"].int16).numpy()
    return np.asarray(bits.view(import_module("ml_dtypes").bfloat16))


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

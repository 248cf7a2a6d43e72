"""An extension of griffe, which reads the docstrings for the site: see mkdocs.yml."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any

import griffe

from tools.docstring_lists import with_definitions

DERIVED = ("takes_options", "documented")
"""Decorators that make docstring and parameters from the declarations of options."""


class Definitions(griffe.Extension):
    """Lists of parameters become definitions; derived ones are those of the running code."""

    def on_instance(self, *, obj: Any, **_: Any) -> None:
        """Called for each object that griffe found."""
        decorators = [str(each.value) for each in getattr(obj, "decorators", ())]
        if any(text.startswith(DERIVED) for text in decorators):
            show_derived(obj, getattr(import_module(obj.parent.path), obj.name))
        if obj.docstring is not None:
            obj.docstring.value = with_definitions(obj.docstring.value)


def show_derived(obj: Any, real: Any) -> None:
    """Give a function or class of griffe the docstring and the parameters of the real one."""
    obj.docstring.value = inspect.getdoc(real)
    parameters = [
        griffe.Parameter(
            each.name,
            annotation=each.annotation,
            kind=getattr(griffe.ParameterKind, each.kind.name.lower()),
            default=None if each.default is each.empty else repr(each.default),
        )
        for each in inspect.signature(real).parameters.values()
    ]
    if obj.is_function:
        obj.parameters = griffe.Parameters(*parameters)
    else:
        parameter = griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)
        function = griffe.Function("__init__", parameters=griffe.Parameters(parameter, *parameters))
        obj.set_member("__init__", function)

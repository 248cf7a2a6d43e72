"""An extension of griffe, which reads the docstrings for the site: see mkdocs.yml."""

from __future__ import annotations

from typing import Any

import griffe

from tools.docstring_lists import with_definitions


class Definitions(griffe.Extension):
    """Lists of parameters become definitions."""

    def on_instance(self, *, obj: Any, **_: Any) -> None:
        """Called for each object that griffe found."""
        if obj.docstring is not None:
            obj.docstring.value = with_definitions(obj.docstring.value)

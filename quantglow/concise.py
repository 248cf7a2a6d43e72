"""A short ``repr`` for dataclasses that hold much: programs, histograms, scales of channels."""

from __future__ import annotations

from dataclasses import fields
from reprlib import Repr
from typing import Any

MAX_CHARACTERS = 900
"""Maximum length of a ``repr``."""

_SHORT = Repr()
_SHORT.maxlevel = 2
_SHORT.maxstring = _SHORT.maxother = 80


class Concise:
    """Base of a dataclass with ``repr=False``: its ``repr`` has the first entries of each field."""

    __slots__ = ()

    def __repr__(self) -> str:
        own: Any = self
        shown = ", ".join(
            f"{field.name}={_SHORT.repr(getattr(self, field.name))}"
            for field in fields(own)
            if field.repr
        )
        text = f"{type(self).__name__}({shown})"
        return text if len(text) <= MAX_CHARACTERS else text[: MAX_CHARACTERS - 2] + "…)"

"""Packages that quantglow's extras install."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from quantglow.errors import OptionError


def package(name: str, extra: str, purpose: str) -> Any:
    """A module of an optional package.  Raises ``OptionError`` that names the extra."""
    try:
        return import_module(name)
    except ImportError as error:
        raise OptionError(
            f"{purpose} needs the package {name.partition('.')[0]}: {error}. "
            f'Remedy: pip install "quantglow[{extra}]"'
        ) from None

"""Packages that quantglow's extras install."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from quantglow.errors import OptionError, QuantglowError


def package(name: str, extra: str, purpose: str, error: type[QuantglowError] = OptionError) -> Any:
    """A module of an optional package.  Raises ``error``, which names the extra."""
    try:
        return import_module(name)
    except ImportError as cause:
        raise error(
            f"{purpose} needs the package {name.partition('.')[0]}: {cause}. "
            f"Remedy: pip install 'quantglow[{extra}]'"
        ) from None

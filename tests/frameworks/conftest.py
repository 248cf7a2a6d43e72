"""Leaves these tests out where their marker is: other runs have no PyTorch to collect them."""

from __future__ import annotations

import pytest


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """True where the marker is deselected; a file is not even imported then."""
    return True if "not frameworks" in config.option.markexpr else None

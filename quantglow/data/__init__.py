"""Samples out of files and folders.  README.md has the guide."""

from quantglow.data.images import ImageFolder

__all__ = ["ImageFolder"]

"""Samples in every form that users have them.  README.md has the guide."""

from quantglow.profiling.samples.images import ImageFolder

__all__ = ["ImageFolder"]

"""Samples out of files and folders: the public names of ``profiling.samples``."""

from quantglow.profiling.samples import ImageFolder

__all__ = ["ImageFolder"]

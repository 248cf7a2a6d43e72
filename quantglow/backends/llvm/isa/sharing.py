"""Kernels that layers share in a bundle."""

from __future__ import annotations

from enum import Enum


class Sharing(Enum):
    """Layers with one kernel between them, which takes the numbers in which they differ.

    ``NONE``   those whose kernels are equal
    ``OUTER``  those whose kernels differ outside of the addresses of their innermost loops
    ``ALL``    those whose kernels differ in numbers
    """

    NONE = "none"
    OUTER = "outer"
    ALL = "all"

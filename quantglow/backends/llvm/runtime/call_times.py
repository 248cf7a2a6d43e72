"""Times of kernel calls, and what a profile shows beside them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class CallFacts:
    """One kernel call: ``name`` of the value it computes, ``op``, ``label`` of its kernel.

    ``work`` is the generator's estimate of operations; ``macs`` counts multiply-accumulates
    without padding; ``nbytes`` is what is read and written at least, constants included.
    """

    name: str
    op: str
    label: str
    work: float
    macs: int
    nbytes: int
    is_integer: bool


@dataclass(frozen=True, kw_only=True)
class CallTime(CallFacts):
    """A kernel call and its time."""

    seconds: float

    def limit_seconds(self, macs_per_second: float, nbytes_per_second: float) -> float:
        """The time of a machine that does nothing but these products, or moves these bytes."""
        return max(self.macs / macs_per_second, self.nbytes / nbytes_per_second)

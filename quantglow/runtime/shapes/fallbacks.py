"""Replacements for programs in the cases in which a model cannot be compiled to its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from quantglow.graph.case import Case
from quantglow.lazy import cached_property
from quantglow.runtime.shapes.served_shapes import ServedShapes
from quantglow.runtime.shapes.specialisations import Served


class Fallback(Protocol):
    """Programs that need not be compiled, or not to their end.  All methods are thread-safe."""

    def __call__(self, case: Case, reasons: tuple[str, ...]) -> Served:
        """The program for a case that cannot be compiled, for these reasons."""

    def known(self, case: Case) -> Served | None:
        """The program for a case like one that could not be compiled; None for other cases."""

    def meanwhile(self, case: Case) -> Served:
        """The whole model in onnxruntime, for a case whose program is not ready.  Raises
        ``FallbackError``."""

    def served(self) -> tuple[ServedShapes, ...]:
        """Entries of the programs of its parts."""

    def original(self) -> bytes:
        """The ONNX model that it runs."""


@dataclass(frozen=True, eq=False)
class FallbackOnUse:
    """The fallback that ``make`` makes for the first case that needs it.

    ``exact``: the whole model by ``meanwhile``, if another than that of the fallback is at hand.
    """

    make: Callable[[], Fallback]
    exact: Callable[[Case], Served] | None = None

    def __call__(self, case: Case, reasons: tuple[str, ...]) -> Served:
        """The program for a case that cannot be compiled, for these reasons."""
        return self._fallback(case, reasons)

    @cached_property
    def _fallback(self) -> Fallback:
        return self.make()

    @property
    def _made(self) -> Fallback | None:
        """The fallback, if a case needed it."""
        return vars(self).get("_fallback")

    def meanwhile(self, case: Case) -> Served:
        """The whole model in onnxruntime, for a case whose program is not ready."""
        return self._fallback.meanwhile(case) if self.exact is None else self.exact(case)

    def known(self, case: Case) -> Served | None:
        """The program for a case like one that could not be compiled; None for other cases."""
        return None if self._made is None else self._made.known(case)

    def served(self) -> tuple[ServedShapes, ...]:
        """Entries of the programs of its parts."""
        return () if self._made is None else self._made.served()

    def original(self) -> bytes:
        """The ONNX model that it runs."""
        return self._fallback.original()

"""The interface of a code generator; see ``examples/README.md``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from quantglow.foreign_types import Array
from quantglow.graph.graph import Graph
from quantglow.graph.node import Node


class Executable(Protocol):
    """A compiled segment.  ``run`` may be called from several threads at once."""

    def run(self, feeds: Mapping[str, Array]) -> list[Array]:
        """One array for each output, in order, of exactly its type.

        ``feeds`` (input name -> array) are known to match the inputs; they may be views of the
        caller's arrays and must not be written to.  The returned arrays must not be written later.
        """


@runtime_checkable
class Backend(Protocol):
    """A code generator: the nodes that it supports, and their compilation."""

    @property
    def name(self) -> str:
        """Its name in reports."""

    def supports(self, node: Node) -> bool:
        """Whether it can compute this node: its class, types, shapes, constant operands.

        Asked for each operator of the optimized graph (float or int8), never for Inputs and
        Constants.
        """

    def compile(self, segment: Graph, target: str, num_threads: int) -> Executable:
        """Compile a segment: all its operators are supported, its inputs and outputs are the values
        that cross its border, under their names.
        """

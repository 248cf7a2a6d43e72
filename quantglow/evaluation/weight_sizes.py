"""Bytes of a model's weights before and after quantization, as files have them: each once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant
from quantglow.runtime.saved.stored_arrays import stored_nbytes
from quantglow.support.views import HasText


@dataclass(frozen=True)
class WeightSizes(HasText):
    """Bytes that files have of the constants of the float and of the quantized graph."""

    float_nbytes: int
    quantized_nbytes: int

    @staticmethod
    def of(before: Graph, after: Graph) -> WeightSizes:
        """The sizes of two graphs."""
        return WeightSizes(_constants_nbytes(before), _constants_nbytes(after))

    @property
    def ratio(self) -> float:
        """Float over quantized: above 1, the weights shrink."""
        return self.float_nbytes / max(self.quantized_nbytes, 1)

    def to_json(self) -> dict[str, Any]:
        """The sizes in types that ``json`` writes."""
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> WeightSizes:
        """The object from the result of ``to_json``."""
        return WeightSizes(int(data["float_nbytes"]), int(data["quantized_nbytes"]))


def _constants_nbytes(graph: Graph) -> int:
    """Bytes that a file has of the constants of a graph, those in bodies of loops included."""
    return stored_nbytes(n.value for n in graph.every_node() if isinstance(n, Constant))

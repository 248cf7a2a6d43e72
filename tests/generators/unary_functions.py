"""Every declared function of one value, with attributes to test it with.

A new function joins by its declaration.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from quantglow.importer.onnx.operators.math.elementwise import DECLARED
from quantglow.ir.graph.node import OPS, Node, attribute_fields
from quantglow.ir.ops.unary import Unary

POSITIVE = ("Log", "Reciprocal", "Sqrt")
"""Functions with a pole or an end at 0."""

BOUNDED = {"Clip": {"low": -0.5, "high": 1.0}}
"""Attributes of functions that are the identity by default."""


@dataclass(frozen=True)
class Declared:
    """An operator and values for its attributes."""

    kind: type[Unary]
    attributes: dict[str, Any]

    def __str__(self) -> str:
        values = "-".join(f"{value:.3g}" for value in self.attributes.values())
        return f"{self.kind.__name__}-{values}" if values else self.kind.__name__

    @property
    def name(self) -> str:
        return self.kind.__name__

    @property
    def positive(self) -> bool:
        """Whether the function is defined above 0 only."""
        return self.name in POSITIVE

    @property
    def importable(self) -> bool:
        """Whether the ONNX operator has the same name and attributes."""
        return self.name in DECLARED

    def node(self, name: str, x: Node) -> Unary:
        return self.kind(name=name, x=x, **self.attributes)


def altered(default: Any) -> Any:
    """Another value of an attribute, close to the default."""
    return not default if isinstance(default, bool) else round(0.6 * default + 0.1, 3)


def forms(kind: type[Unary]) -> list[Declared]:
    """The function with the attributes of its declaration, and with others."""
    defaults = {name: getattr(kind, name) for name in attribute_fields(kind)}
    others = {name: altered(value) for name, value in defaults.items()}
    others |= BOUNDED.get(kind.__name__, {})
    return [Declared(kind, defaults), *([Declared(kind, others)] if others else [])]


FUNCTIONS = [form for kind in OPS.values() if issubclass(kind, Unary) for form in forms(kind)]

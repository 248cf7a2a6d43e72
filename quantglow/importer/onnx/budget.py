"""Limits of one import, so that no model, however small, fills the memory or never ends.

Each limit is an environment variable, read when a model is imported:

``QUANTGLOW_IMPORT_NBYTES``    bytes of values computed at import, beyond 32 for each byte of the
                               model's own weights
``QUANTGLOW_IMPORT_WORK``      multiply-accumulates of computing them
``QUANTGLOW_IMPORT_NODES``     nodes, those of inlined functions and of subgraphs included
``QUANTGLOW_IMPORT_SECONDS``   time of the import
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import onnx

from quantglow.ir.symbolic.size import Dim, decide, prod
from quantglow.support.arguments import limit
from quantglow.support.errors import ImportBudgetError

WEIGHTS_FACTOR = 32
"""Bytes of computed values for each byte of weights.  20 are needed where int8 weights become
float32 and are transposed, with their codes, scales and zero points."""


@dataclass(frozen=True)
class ImportBudget:
    """The limits.  The defaults are a multiple of what large real models take."""

    nbytes: float = 2**31
    work: float = 2e11
    nodes: float = 250_000
    seconds: float = 600.0

    @staticmethod
    def from_environment() -> ImportBudget:
        """The defaults, and what the environment says.  Raises ``OptionError``."""
        texts = {f.name: os.environ.get(variable(f.name)) for f in fields(ImportBudget)}
        return ImportBudget(**{n: limit(variable(n), text) for n, text in texts.items() if text})


def variable(name: str) -> str:
    """The environment variable of a limit."""
    return f"QUANTGLOW_IMPORT_{name.upper()}"


@dataclass
class Meter:
    """The cost of one import so far.  ``weights_nbytes`` are the bytes of the model's weights.

    Values are refused before they are computed, by ``reserve``, so that none fills the memory.
    """

    budget: ImportBudget = field(default_factory=ImportBudget.from_environment)
    weights_nbytes: int = 0
    nbytes: int = 0
    work: int = 0
    nodes: int = 0
    started: float = field(default_factory=time.monotonic)
    node: onnx.NodeProto | None = None

    @property
    def most_nbytes(self) -> float:
        """The bytes allowed to this model."""
        return self.budget.nbytes + WEIGHTS_FACTOR * self.weights_nbytes

    def enter(self, node: onnx.NodeProto) -> None:
        """Count a node that is about to be imported."""
        self.node, self.nodes = node, self.nodes + 1
        if self.nodes > self.budget.nodes:
            raise self.exceeded("nodes", f"the model has more than {self.budget.nodes:.0f} nodes")
        if time.monotonic() - self.started > self.budget.seconds:
            raise self.exceeded("seconds", f"importing takes more than {self.budget.seconds:g} s")

    def reserve(self, name: str, shape: Sequence[Dim], itemsize: int) -> None:
        """Refuse a value of this shape if there is no room for it."""
        nbytes = self.nbytes + prod(shape) * itemsize
        if math.isfinite(self.most_nbytes) and decide(nbytes > int(self.most_nbytes)):
            size = "x".join(map(str, shape)) or "1"
            raise self.exceeded(
                "nbytes",
                f"value {name!r}, a constant, would have shape {tuple(shape)}: {size} elements of "
                f"{itemsize} bytes; with the {self.nbytes} bytes computed before it these are "
                f"more than {self.most_nbytes:.0f}",
            )

    def count(self, name: str, shape: Sequence[int], itemsize: int) -> None:
        """Count a value that was computed."""
        self.reserve(name, shape, itemsize)
        self.nbytes += math.prod(shape) * itemsize

    def spend(self, work: int) -> None:
        """Count multiply-accumulates that are about to be done."""
        if self.work + work > self.budget.work:
            raise self.exceeded(
                "work",
                f"its value is constant, and computing it takes {work:.3g} operations; with the "
                f"{self.work:.3g} before these are more than {self.budget.work:.3g}",
            )
        self.work += work

    def exceeded(self, name: str, cause: str) -> ImportBudgetError:
        """The error; the caller raises it."""
        where = "" if self.node is None else f"{describe(self.node)}: "
        return ImportBudgetError(
            f"{where}{cause}. Remedy: if you trust the model, raise the limit in the environment: "
            f"{variable(name)}=inf."
        )


def describe(proto: onnx.NodeProto) -> str:
    """A node in one line: name, op and domain."""
    name = proto.name or next(iter(proto.output), "")
    domain = f"{proto.domain}." if proto.domain else ""
    return f"node {name!r} ({domain}{proto.op_type})"

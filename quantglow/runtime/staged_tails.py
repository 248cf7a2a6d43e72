"""Tails of which onnxruntime computes the beginning only: what decides shapes.

The rest is compiled as a model of its own, once its shapes are known.  A tail has the methods of a
``Session``.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from quantglow.backends.onnxruntime.session import Session
from quantglow.concise import Concise
from quantglow.lazy import cached_property
from quantglow.runtime.compiled import ReportLike, TensorInfo
from quantglow.runtime.fallback import FallbackNode
from quantglow.runtime.newer_opsets import opened
from quantglow.runtime.shapes.served_shapes import ServedShapes
from quantglow.runtime.shapes.specialisations import Specialisations


class AnyModel(Protocol):
    """A compiled model, or one that is cut again."""

    @property
    def specialisations(self) -> Specialisations:
        """Its programs, or those of its first part."""

    @property
    def report(self) -> ReportLike:
        """Its report."""

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Any]:
        """The named outputs."""

    def get_inputs(self) -> list[TensorInfo]:
        """Name, shape and type of each input."""

    def get_outputs(self) -> list[TensorInfo]:
        """The same of each output."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a ``.qgm`` file."""


class Tail(Protocol):
    """The part of a model behind the compiled one."""

    @property
    def input_names(self) -> list[str]:
        """Names of the inputs."""

    @property
    def inputs(self) -> list[Any]:
        """Name, type and shape of each input."""

    @property
    def outputs(self) -> list[Any]:
        """The same of each output."""

    def run(self, feeds: Mapping[str, Any], names: list[str] | None = None) -> list[Any]:
        """The named outputs (None: all)."""


@dataclass(frozen=True, eq=False, repr=False)
class StagedTail(Concise):
    """A session, and a compiled model that reads its results.

    ``whole``: the ONNX model of both, which runs in onnxruntime where an array between them has no
    elements, as if nothing was detected.  ``nodes``: the operators of the first, ``late``: values
    that nothing but the tail computes.  ``is_int8``: the rest is quantized, so a file has it;
    ``why`` it is not, if quantization was asked for.
    """

    first: Session
    rest: AnyModel
    whole: bytes
    nodes: tuple[FallbackNode, ...]
    num_threads: int
    late: frozenset[str] = frozenset()
    is_int8: bool = False
    why: str = ""

    @cached_property
    def given(self) -> list[str]:
        """Names of what the session gives."""
        return [info.name for info in self.first.outputs]

    @cached_property
    def input_names(self) -> list[str]:
        """Names of the inputs."""
        return [info.name for info in self.inputs]

    @cached_property
    def inputs(self) -> list[Any]:
        """Name, type and shape of each input."""
        own = [info for info in self.rest.get_inputs() if info.name not in self.given]
        infos = [*map(TensorInfo.of_node, self.first.inputs), *own]
        return list({info.name: info for info in infos}.values())

    @cached_property
    def outputs(self) -> list[Any]:
        """The same of each output."""
        return [*map(TensorInfo.of_node, self.first.outputs), *self.rest.get_outputs()]

    def run(self, feeds: Mapping[str, Any], names: list[str] | None = None) -> list[Any]:
        """The named outputs (None: all); the rest runs if it is asked for one of its own."""
        wanted = [info.name for info in self.outputs] if names is None else names
        reads = {name: feeds[name] for name in self.first.input_names}
        values = {**feeds, **dict(zip(self.given, self.first.run(reads), strict=True))}
        late = [name for name in wanted if name not in values]
        if late:
            values |= dict(zip(late, self._rest(values, late), strict=True))
        return [values[name] for name in wanted]

    def _rest(self, values: Mapping[str, Any], late: list[str]) -> list[Any]:
        reads = {info.name: values[info.name] for info in self.rest.get_inputs()}
        if all(map(np.size, reads.values())):
            return self.rest.run(late, reads)
        return self._session.run({n: values[n] for n in self._session.input_names}, late)

    @cached_property
    def _session(self) -> Session:
        return opened(self.whole, self.num_threads)

    @property
    def fallback(self) -> tuple[FallbackNode, ...]:
        """The operators that onnxruntime runs, as far as they are known."""
        return (*self.nodes, *self.later)

    @property
    def later(self) -> tuple[FallbackNode, ...]:
        """Operators of the rest that onnxruntime runs."""
        return tuple(getattr(self.rest.report, "fallback", ()))

    @property
    def note(self) -> str:
        """A sentence about the rest, for a report."""
        kind = "int8, calibrated on what the samples lead to" if self.is_int8 else "float"
        why = f": {self.why}" if self.why else ""
        names = ", ".join(node.name for node in self.nodes if node.name in self.late)
        return f"the part behind {names} is compiled as a model of its own, in {kind}{why}"

    def rest_file(self) -> bytes:
        """The bytes of a ``.qgm`` file of the rest, if a file needs it: else none."""
        if not self.is_int8:
            return b""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "rest.qgm"
            self.rest.save(path)
            return path.read_bytes()

    @property
    def served(self) -> tuple[ServedShapes, ...]:
        """The programs of the rest."""
        return self.rest.specialisations.served()

"""The interface of a part of a model that is compiled later."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from quantglow.graph.signature import Shapes
from quantglow.runtime.compiled import ReportLike
from quantglow.runtime.shapes.specialisations import ModelPrograms
from quantglow.runtime.tensor_info import TensorInfo


class AnyModel(Protocol):
    """A compiled model, or one that is cut again."""

    @property
    def specialisations(self) -> ModelPrograms:
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

    def to_onnx(self, input_shapes: Shapes | None = None) -> bytes:
        """The ONNX model that ``export_onnx`` writes."""

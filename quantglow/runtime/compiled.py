"""CompiledModel: a network ready to run, called as onnxruntime's ``InferenceSession`` is."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from quantglow.arguments import file_path, strings
from quantglow.errors import InputError
from quantglow.graph.graph import Graph
from quantglow.graph.signature import Dim, Port
from quantglow.runtime.build import Build
from quantglow.runtime.saving import save
from quantglow.runtime.specialisations import OneShape, Specialisation, Specialisations
from quantglow.types import Array, DType

if TYPE_CHECKING:
    from quantglow.profiling import Profile

_ONNXRUNTIME_TYPES = {
    DType.F32: "tensor(float)",
    DType.I8: "tensor(int8)",
    DType.U8: "tensor(uint8)",
    DType.I16: "tensor(int16)",
    DType.I32: "tensor(int32)",
    DType.I64: "tensor(int64)",
    DType.BOOL: "tensor(bool)",
}


class ReportLike(Protocol):
    """What a compiled model needs of its report: to save it."""

    def to_json(self) -> dict[str, Any]:
        """The report in types that ``json`` writes."""


Reporter = Callable[[], ReportLike]
"""Gives the report as it is now: there is more to say once a model of free shapes has run."""


@dataclass(frozen=True)
class TensorInfo:
    """An input or output as onnxruntime's ``NodeArg`` describes it."""

    name: str
    shape: list[Dim]
    type: str

    @property
    def dtype(self) -> np.dtype[Any]:
        """What NumPy calls the elements.  Raises ``InputError`` for what is no numeric tensor."""
        element = self.type.removeprefix("tensor(").removesuffix(")")
        try:
            return np.dtype({"float": "float32", "double": "float64"}.get(element, element))
        except TypeError:
            raise InputError(f"{self.name!r} is {self.type}, which no array holds") from None

    @staticmethod
    def of(port: Port) -> TensorInfo:
        return TensorInfo(port.name, list(port.dims or ()), _ONNXRUNTIME_TYPES[port.dtype])


@dataclass(frozen=True, eq=False)
class CompiledModel:
    """A network and the machine code of it.  All methods may be called from any thread.

    ``reporter`` makes the report; ``profile`` is what it was quantized with, None for a float model
    or one loaded from a file.  A model that leaves dimensions free takes
    inputs of any shape that fits; for a new one it is compiled on first use, see
    ``quantglow.runtime.specialisations``.
    """

    specialisations: Specialisations
    reporter: Reporter
    profile: Profile | None = None

    @staticmethod
    def of(
        graph: Graph, build: Build, report: ReportLike, profile: Profile | None = None
    ) -> CompiledModel:
        """A model of fixed shapes."""
        return CompiledModel(OneShape(Specialisation(graph, build)), lambda: report, profile)

    @property
    def report(self) -> ReportLike:
        """What it costs, how exact it is, what runs elsewhere.  Of a model that is compiled on
        first use: of the program that was compiled first, once there is one."""
        return self.reporter()

    @property
    def graph(self) -> Graph:
        """The graph; of a model with free dimensions, at the shapes it was compiled for first."""
        return self.specialisations.first.graph

    @property
    def build(self) -> Build:
        """The program of ``graph``."""
        return self.specialisations.first.build

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Array]:
        """The named outputs (None: all, in order) for ``feeds``, input name -> array.

        Raises ``InputError`` for unknown names, wrong shapes and wrong dtypes.
        """
        known = [port.name for port in self.specialisations.signature.outputs]
        positions = [known.index(name) for name in chosen_outputs(output_names, known)]
        check_mapping(feeds)
        arrays = {name: as_array(name, value) for name, value in feeds.items()}
        outputs = self.specialisations.at(arrays).run(arrays)
        return [outputs[position] for position in positions]

    def __call__(self, *arrays: Any, **named: Any) -> Array | list[Array]:
        """Outputs for arrays given in the order of the inputs, or by name; a single one alone."""
        names = [port.name for port in self.specialisations.signature.inputs]
        outputs = self.run(None, feeds_by_name(names, arrays, named))
        return outputs[0] if len(outputs) == 1 else outputs

    def get_inputs(self) -> list[TensorInfo]:
        """Name, shape and type of each input, in order; free dimensions are symbols or None."""
        return list(map(TensorInfo.of, self.specialisations.signature.inputs))

    def get_outputs(self) -> list[TensorInfo]:
        """Name, shape and type of each output, in order."""
        return list(map(TensorInfo.of, self.specialisations.signature.outputs))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a ``.qgm`` file for ``quantglow.load``, on any processor.

        A model that leaves dimensions free must have been run or calibrated once.
        """
        freedom = self.specialisations.freedom_of_first()
        save(file_path("path", path), self.graph, self.report.to_json(), freedom)

    def export_onnx(self, path: str | os.PathLike[str]) -> None:
        """Write the graph as ONNX; int8 values as QDQ, which onnxruntime runs.

        Its integers may differ from ours by one step where a sum lies on a tie.
        """
        # Only here: a process that runs a saved model does not need onnx.
        from quantglow.frontend.export.model import export_onnx

        export_onnx(self.graph, file_path("path", path))

    def __repr__(self) -> str:
        def shown(infos: list[TensorInfo]) -> str:
            return ", ".join(f"{info.name}: {info.type[7:-1]}{info.shape}" for info in infos)

        return (
            f"<CompiledModel ({shown(self.get_inputs())}) -> ({shown(self.get_outputs())}), "
            f"{self.specialisations.target}, {self.specialisations.num_threads} thread(s)>"
        )


def chosen_outputs(output_names: Sequence[str] | None, known: list[str]) -> list[str]:
    """The outputs to return, None: all.  Raises ``InputError`` for unknown names."""
    if output_names is None:
        return known
    wanted = list(strings(output_names, "output_names"))
    if unknown := [name for name in wanted if name not in known]:
        raise InputError(f"unknown output(s) {unknown}; the model has {known}")
    return wanted


def check_mapping(feeds: object) -> None:
    """Raise ``InputError`` for feeds that are no mapping."""
    if not isinstance(feeds, Mapping):
        raise InputError(
            f"feeds must map input names to arrays, got {type(feeds).__name__}. "
            "Remedy: run(None, {name: array}), or call the model with arrays"
        )


def feeds_by_name(
    names: list[str], arrays: Sequence[Any], named: Mapping[str, Any]
) -> dict[str, Any]:
    """Feeds of a call with arrays by position and by name.  Raises ``InputError``."""
    if len(arrays) > len(names):
        raise InputError(f"{len(arrays)} arrays given, the model takes {len(names)}: {names}")
    feeds = dict(zip(names, arrays, strict=False))
    if twice := sorted(feeds.keys() & named.keys()):
        raise InputError(f"input(s) {twice} given both by position and by name")
    return {**feeds, **named}


def as_array(name: str, value: Any) -> Array:
    """The array that a feed is.  Raises ``InputError``."""
    try:
        return np.asarray(value)
    except ValueError as error:
        raise InputError(f"input {name!r} is no array: {error}") from None

"""CompiledModel: a network ready to run, called as onnxruntime's ``InferenceSession`` is."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from quantglow.arguments import file_path, shapes, strings
from quantglow.errors import InputError
from quantglow.graph.border import entering, leaving, numpy_type
from quantglow.graph.graph import Graph
from quantglow.graph.signature import DECLARED, Dim, Port
from quantglow.runtime.build import Build
from quantglow.runtime.saving import save
from quantglow.runtime.specialisations import Specialisations
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
_DECLARED_TYPES = {kind: f"tensor({kind})" for kind in DECLARED} | {"float64": "tensor(double)"}


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
            return numpy_type({"float": "float32", "double": "float64"}.get(element, element))
        except TypeError:
            raise InputError(f"{self.name!r} is {self.type}, which no array holds") from None

    @staticmethod
    def of_node(node: Any) -> TensorInfo:
        """The description of onnxruntime's ``NodeArg``."""
        return TensorInfo(node.name, node.shape, node.type)

    @staticmethod
    def of(port: Port) -> TensorInfo:
        kind = _DECLARED_TYPES.get(port.declared, _ONNXRUNTIME_TYPES[port.dtype])
        return TensorInfo(port.name, list(port.dims or ()), kind)


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

        Arrays have the types that the model declares, as ``InferenceSession.run`` takes and gives
        them; float16, bfloat16 and float64 are computed as float32.

        Raises ``InputError`` for unknown names, wrong shapes and wrong dtypes.
        """
        ends = self.specialisations.signature
        known = [port.name for port in ends.outputs]
        positions = [known.index(name) for name in chosen_outputs(output_names, known)]
        check_mapping(feeds)
        given = {name: as_array(name, value) for name, value in feeds.items()}
        arrays = entering(ends.inputs, given)
        outputs = leaving(ends.outputs, self.specialisations.at(arrays).run(arrays))
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

    def export_onnx(
        self,
        path: str | os.PathLike[str],
        input_shapes: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        """Write the graph as ONNX; int8 values as QDQ, which onnxruntime runs.

        Dimensions that the model leaves free stay free; ``input_shapes`` fixes them (input name ->
        shape).  Where values of inputs decide what is computed, those of the first call stay.
        Integers may differ from ours by one step where a sum lies on a tie; behind it others
        follow.  On x86 without VNNI onnxruntime saturates sums at 16 bits, unless the session
        option ``session.x64quantprecision`` is ``1``.

        Raises ``ModelError`` where a dimension cannot stay free, ``InputError`` for shapes that the
        model does not take.
        """
        chosen, file = shapes("input_shapes", input_shapes), file_path("path", path)
        # Only here: a process that runs a saved model does not need onnx.
        from quantglow.frontend.export.free_dimensions import export_free
        from quantglow.frontend.export.model import export_onnx

        programs = self.specialisations
        if chosen is None and programs.signature.is_free:
            known = {node.name: node.type.shape for node in self.graph.inputs}
            export_free(programs.signature, programs.graph_for, known, file)
        else:
            export_onnx(self.graph if chosen is None else programs.graph_for(chosen), file)

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

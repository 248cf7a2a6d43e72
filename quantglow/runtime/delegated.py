"""Models that onnxruntime runs whole, behind the interface of ``CompiledModel``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from quantglow.backends.onnxruntime.session import Session
from quantglow.errors import InputError, OptionError
from quantglow.files import replacing
from quantglow.options import strings
from quantglow.runtime.compiled import ReportLike, TensorInfo, as_array


@dataclass(frozen=True, eq=False)
class DelegatedModel:
    """A valid ONNX model of which nothing is compiled: its shapes or types are only known while it
    runs.  ``reasons`` name the nodes.  All methods may be called from any thread.

    Dimensions that the model leaves free may differ from call to call.
    """

    model: bytes
    reasons: tuple[str, ...]
    num_threads: int
    report: ReportLike

    @cached_property
    def session(self) -> Session:
        return Session(self.model, self.num_threads)

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Any]:
        """As ``CompiledModel.run``; sequences are lists of arrays."""
        known = [output.name for output in self.session.outputs]
        wanted = known if output_names is None else list(strings(output_names, "output_names"))
        if unknown := [name for name in wanted if name not in known]:
            raise InputError(f"unknown output(s) {unknown}; the model has {known}")
        if not isinstance(feeds, Mapping):
            raise InputError(f"feeds must map input names to arrays, got {type(feeds).__name__}")
        return self.session.run({name: fed(name, value) for name, value in feeds.items()}, wanted)

    def __call__(self, *arrays: Any, **named: Any) -> Any:
        """Outputs for arrays given in the order of the inputs, or by name; a single one alone."""
        names = self.session.input_names
        if len(arrays) > len(names):
            raise InputError(f"{len(arrays)} arrays given, the model takes {len(names)}: {names}")
        outputs = self.run(None, {**dict(zip(names, arrays, strict=False)), **named})
        return outputs[0] if len(outputs) == 1 else outputs

    def get_inputs(self) -> list[TensorInfo]:
        """Name, shape and type of each input, in order; free dimensions are names or None."""
        return [TensorInfo(i.name, i.shape, i.type) for i in self.session.inputs]

    def get_outputs(self) -> list[TensorInfo]:
        """Name, shape and type of each output, in order."""
        return [TensorInfo(o.name, o.shape, o.type) for o in self.session.outputs]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Refused: there is nothing compiled to save."""
        raise OptionError(
            "nothing of this model is compiled, onnxruntime runs it whole. Remedy: keep the ONNX "
            "file, or write it with export_onnx."
        )

    def export_onnx(self, path: str | os.PathLike[str]) -> None:
        """Write the model as it was given."""
        with replacing(path) as temporary:
            Path(temporary).write_bytes(self.model)

    def __repr__(self) -> str:
        return f"<DelegatedModel, onnxruntime, {self.num_threads} thread(s)>"


def fed(name: str, value: Any) -> Any:
    """A tensor as an array; lists stay sequences of tensors, None an absent optional."""
    if value is None:
        return None
    if isinstance(value, list):
        return [fed(name, item) for item in value]
    return as_array(name, value)

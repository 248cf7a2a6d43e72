"""ONNX models run by onnxruntime: bytes and arrays in, arrays out.

Libraries of custom operators are never loaded: they are code of whoever wrote the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from quantglow.errors import DelegationError

NAME = "onnxruntime"
SILENT = 4
"""onnxruntime's log level "fatal": what goes wrong is raised, not printed."""


class Session:
    """A model loaded by onnxruntime.  ``run`` may be called from several threads."""

    def __init__(self, model: bytes, num_threads: int = 1) -> None:
        ort = runtime()
        options = ort.SessionOptions()
        options.intra_op_num_threads = num_threads
        options.inter_op_num_threads = 1
        options.log_severity_level = SILENT
        try:
            self.session = ort.InferenceSession(model, options, ["CPUExecutionProvider"])
        except failures() as error:
            raise DelegationError(f"onnxruntime cannot load the model: {error}") from error
        self.input_names: list[str] = [argument.name for argument in self.session.get_inputs()]

    @property
    def inputs(self) -> list[Any]:
        """``NodeArg`` of each input: name, type, shape."""
        return list(self.session.get_inputs())

    @property
    def outputs(self) -> list[Any]:
        """``NodeArg`` of each output."""
        return list(self.session.get_outputs())

    def run(self, feeds: Mapping[str, Any], names: list[str] | None = None) -> list[Any]:
        """The named outputs (None: all); arrays, and lists where an output is a sequence."""
        try:
            return list(self.session.run(names, dict(feeds)))
        except failures() as error:
            raise DelegationError(f"onnxruntime cannot run the model: {error}") from error


def runtime() -> ModuleType:
    """onnxruntime, imported when a model needs it: that takes a quarter of a second."""
    import onnxruntime

    module: ModuleType = onnxruntime
    return module


def failures() -> tuple[type[Exception], ...]:
    """What sessions raise: their exception types derive from RuntimeError or Exception only."""
    state = runtime().capi.onnxruntime_pybind11_state
    found = [v for v in vars(state).values() if isinstance(v, type) and issubclass(v, Exception)]
    return (*found, RuntimeError, ValueError, TypeError)

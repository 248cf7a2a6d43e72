"""quantglow: a quantization-focused neural-network compiler.

::

    import quantglow as qg

    compiled = qg.quantize_and_compile("model.onnx", samples)
    outputs = compiled.run(None, {"input": x})
    print(compiled.report)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from quantglow.support.errors import (
    AccuracyDropError,
    BackendError,
    CalibrationError,
    CompileBudgetError,
    ConversionError,
    FallbackError,
    FileFormatError,
    IgnoredScopeError,
    ImportBudgetError,
    InputError,
    ModelError,
    OptionError,
    OutOfMemoryError,
    OutOfRangeError,
    ProfileMismatchError,
    QuantglowError,
    QueueError,
    QueueFullError,
    StateFullError,
    TypeRuleError,
    UndecidedError,
    UnsupportedOpError,
    WrongResultError,
)
from quantglow.version import __version__

if TYPE_CHECKING:
    from quantglow import data, steps
    from quantglow.api.bisect import bisect
    from quantglow.api.compare import compare
    from quantglow.api.compile import compile
    from quantglow.api.load import load
    from quantglow.api.quantize_and_compile import quantize_and_compile
    from quantglow.api.stages import diagnose, import_model, interpret, profile, quantize
    from quantglow.ir.graph.graph import Graph
    from quantglow.ort.fallback import OnnxRuntimeBackend
    from quantglow.profiling import Profile
    from quantglow.quantization.options import IgnoredScope, QuantizationConfig
    from quantglow.report import Report
    from quantglow.report.diagnosis import Diagnosis
    from quantglow.runtime.compiled import CompiledModel
    from quantglow.runtime.hybrid.fallback_model import FallbackModel, PartlyCompiledModel
    from quantglow.runtime.serving.infer_queue import InferQueue
    from quantglow.runtime.states.state import State
    from quantglow.support.timeline import tracing
    from quantglow.transforms.partition import Backend, Executable

_PLACES = {
    "Backend": "quantglow.transforms.partition",
    "CompiledModel": "quantglow.runtime.compiled",
    "Executable": "quantglow.transforms.partition",
    "FallbackModel": "quantglow.runtime.hybrid.fallback_model",
    "Graph": "quantglow.ir.graph.graph",
    "IgnoredScope": "quantglow.quantization.options",
    "InferQueue": "quantglow.runtime.serving.infer_queue",
    "OnnxRuntimeBackend": "quantglow.ort.fallback",
    "Diagnosis": "quantglow.report.diagnosis",
    "PartlyCompiledModel": "quantglow.runtime.hybrid.fallback_model",
    "Profile": "quantglow.profiling",
    "QuantizationConfig": "quantglow.quantization.options",
    "Report": "quantglow.report",
    "State": "quantglow.runtime.states.state",
    "bisect": "quantglow.api.bisect",
    "compare": "quantglow.api.compare",
    "compile": "quantglow.api.compile",
    "diagnose": "quantglow.api.stages",
    "import_model": "quantglow.api.stages",
    "interpret": "quantglow.api.stages",
    "load": "quantglow.api.load",
    "profile": "quantglow.api.stages",
    "quantize": "quantglow.api.stages",
    "quantize_and_compile": "quantglow.api.quantize_and_compile",
    "tracing": "quantglow.support.timeline",
}
"""Modules of the names that are imported on first use: a process that only runs a saved model
imports no importer, and the command line begins at once."""

_NAMESPACES = ("data", "steps")
"""Public modules, which are imported on first use, too."""

__all__ = [
    "AccuracyDropError",
    "Backend",
    "BackendError",
    "CalibrationError",
    "CompileBudgetError",
    "CompiledModel",
    "ConversionError",
    "Diagnosis",
    "Executable",
    "FallbackError",
    "FallbackModel",
    "FileFormatError",
    "Graph",
    "IgnoredScope",
    "IgnoredScopeError",
    "ImportBudgetError",
    "InferQueue",
    "InputError",
    "ModelError",
    "OnnxRuntimeBackend",
    "OptionError",
    "OutOfMemoryError",
    "OutOfRangeError",
    "PartlyCompiledModel",
    "Profile",
    "ProfileMismatchError",
    "QuantglowError",
    "QuantizationConfig",
    "QueueError",
    "QueueFullError",
    "Report",
    "State",
    "StateFullError",
    "TypeRuleError",
    "UndecidedError",
    "UnsupportedOpError",
    "WrongResultError",
    "__version__",
    "bisect",
    "compare",
    "compile",
    "data",
    "diagnose",
    "import_model",
    "interpret",
    "load",
    "profile",
    "quantize",
    "quantize_and_compile",
    "steps",
    "tracing",
]


def __getattr__(name: str) -> Any:
    if name in _NAMESPACES:
        return import_module(f"{__name__}.{name}")
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_PLACES[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""quantglow: a quantization-focused neural-network compiler.

::

    import quantglow as qg

    compiled = qg.quantize_and_compile("model.onnx", samples)
    outputs = compiled.run(None, {"input": x})
    print(compiled.report)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from quantglow.errors import (
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
    from quantglow.driver.bisection import bisect
    from quantglow.driver.comparison import compare
    from quantglow.driver.compilation import compile
    from quantglow.driver.loading import load
    from quantglow.driver.quantize_and_compile import quantize_and_compile
    from quantglow.driver.stages import diagnose, import_model, interpret, profile, quantize
    from quantglow.graph.graph import Graph
    from quantglow.options import IgnoredScope, QuantizationConfig
    from quantglow.profiling import Profile
    from quantglow.report import Report
    from quantglow.report.diagnosis import Diagnosis
    from quantglow.runtime.compiled import CompiledModel
    from quantglow.runtime.fallback import OnnxRuntimeBackend
    from quantglow.runtime.fallback_model import FallbackModel, PartlyCompiledModel
    from quantglow.runtime.protocol import Backend, Executable
    from quantglow.runtime.queues.infer_queue import InferQueue
    from quantglow.runtime.states.state import State
    from quantglow.runtime.traces import tracing

_PLACES = {
    "Backend": "quantglow.runtime.protocol",
    "CompiledModel": "quantglow.runtime.compiled",
    "Executable": "quantglow.runtime.protocol",
    "FallbackModel": "quantglow.runtime.fallback_model",
    "Graph": "quantglow.graph.graph",
    "IgnoredScope": "quantglow.options",
    "InferQueue": "quantglow.runtime.queues.infer_queue",
    "OnnxRuntimeBackend": "quantglow.runtime.fallback",
    "Diagnosis": "quantglow.report.diagnosis",
    "PartlyCompiledModel": "quantglow.runtime.fallback_model",
    "Profile": "quantglow.profiling",
    "QuantizationConfig": "quantglow.options",
    "Report": "quantglow.report",
    "State": "quantglow.runtime.states.state",
    "bisect": "quantglow.driver.bisection",
    "compare": "quantglow.driver.comparison",
    "compile": "quantglow.driver.compilation",
    "diagnose": "quantglow.driver.stages",
    "import_model": "quantglow.driver.stages",
    "interpret": "quantglow.driver.stages",
    "load": "quantglow.driver.loading",
    "profile": "quantglow.driver.stages",
    "quantize": "quantglow.driver.stages",
    "quantize_and_compile": "quantglow.driver.quantize_and_compile",
    "tracing": "quantglow.runtime.traces",
}
"""Modules of the names that are imported on first use: a process that only runs a saved model
imports no frontend, and the command line begins at once."""

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

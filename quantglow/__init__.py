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
from quantglow.support.views import VIEWS as _VIEWS
from quantglow.version import __version__

if TYPE_CHECKING:
    from quantglow import data, steps
    from quantglow.api.bisect import bisect
    from quantglow.api.compare import compare
    from quantglow.api.compile import compile
    from quantglow.api.diagnose import diagnose
    from quantglow.api.import_model import import_model
    from quantglow.api.interpret import interpret
    from quantglow.api.load import load
    from quantglow.api.profile import profile
    from quantglow.api.quantize import quantize
    from quantglow.api.quantize_and_compile import quantize_and_compile
    from quantglow.codegen.llvm.targets import register_target
    from quantglow.evaluation.diagnosis import Diagnosis
    from quantglow.evaluation.report import Report
    from quantglow.ir.graph.graph import Graph
    from quantglow.memory.plans import PlannedProgram
    from quantglow.ort.fallback import OnnxRuntimeBackend
    from quantglow.profiling import Profile
    from quantglow.quantization.options import IgnoredScope, QuantizationConfig
    from quantglow.runtime.compiled import CompiledModel
    from quantglow.runtime.hybrid.fallback_model import FallbackModel
    from quantglow.runtime.programs.generators import ProgramGenerator
    from quantglow.runtime.serving.infer_queue import InferQueue
    from quantglow.runtime.states.state import State
    from quantglow.support.timeline import tracing
    from quantglow.transforms.partition import Backend, Executable, TimedBackend

_PLACES = {
    "Backend": "quantglow.transforms.partition",
    "CompiledModel": "quantglow.runtime.compiled",
    "Executable": "quantglow.transforms.partition",
    "FallbackModel": "quantglow.runtime.hybrid.fallback_model",
    "Graph": "quantglow.ir.graph.graph",
    "IgnoredScope": "quantglow.quantization.options",
    "InferQueue": "quantglow.runtime.serving.infer_queue",
    "OnnxRuntimeBackend": "quantglow.ort.fallback",
    "Diagnosis": "quantglow.evaluation.diagnosis",
    "PlannedProgram": "quantglow.memory.plans",
    "Profile": "quantglow.profiling",
    "ProgramGenerator": "quantglow.runtime.programs.generators",
    "QuantizationConfig": "quantglow.quantization.options",
    "Report": "quantglow.evaluation.report",
    "State": "quantglow.runtime.states.state",
    "TimedBackend": "quantglow.transforms.partition",
    "bisect": "quantglow.api.bisect",
    "compare": "quantglow.api.compare",
    "compile": "quantglow.api.compile",
    "diagnose": "quantglow.api.diagnose",
    "import_model": "quantglow.api.import_model",
    "interpret": "quantglow.api.interpret",
    "load": "quantglow.api.load",
    "profile": "quantglow.api.profile",
    "quantize": "quantglow.api.quantize",
    "quantize_and_compile": "quantglow.api.quantize_and_compile",
    "register_target": "quantglow.codegen.llvm.targets",
    "tracing": "quantglow.support.timeline",
}
"""Modules of the names that are imported on first use: a process that only runs a saved model
imports no importer, and the command line begins at once."""

_VIEWS |= {
    "quantglow.evaluation.accuracy.RightAnswers": "quantglow.report.accuracy.right_answers_text",
    "quantglow.evaluation.baselines.latency.MeasuredLatency": "quantglow.report.speed.latency_text",
    "quantglow.evaluation.baselines.quantizers.QuantizerComparison": (
        "quantglow.report.accuracy.QuantizerComparisonView"
    ),
    "quantglow.evaluation.diagnosis.Diagnosis": "quantglow.report.report.DiagnosisView",
    "quantglow.evaluation.footprint.Footprint": "quantglow.report.memory.footprint_text",
    "quantglow.evaluation.footprint.MemoryMap": "quantglow.report.memory.memory_text",
    "quantglow.evaluation.report.Report": "quantglow.report.report.ReportView",
    "quantglow.evaluation.weight_sizes.WeightSizes": "quantglow.report.memory.weights_text",
    "quantglow.ir.graph.graph.Graph": "quantglow.report.drawing.graph_page",
    "quantglow.profiling.profiles.Profile": "quantglow.report.drawing.profile_page",
    "quantglow.runtime.compiled.CompiledModel": "quantglow.report.drawing.model_page",
    "quantglow.runtime.hybrid.fallback_model.FallbackModel": "quantglow.report.drawing.model_page",
}
"""How the objects of each class are shown, imported when one is."""

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
    "PlannedProgram",
    "Profile",
    "ProfileMismatchError",
    "ProgramGenerator",
    "QuantglowError",
    "QuantizationConfig",
    "QueueError",
    "QueueFullError",
    "Report",
    "State",
    "StateFullError",
    "TimedBackend",
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
    "register_target",
    "steps",
    "tracing",
]


def __getattr__(name: str) -> Any:
    if name in _NAMESPACES:
        return import_module(f"{__name__}.{name}")
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_PLACES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""quantglow: a quantization-focused neural-network compiler.

::

    import quantglow as qg

    compiled = qg.quantize_and_compile("model.onnx", samples)
    outputs = compiled.run(None, {"input": x})
    print(compiled.report)
"""

from quantglow.driver import (
    compile,
    diagnose,
    import_model,
    interpret,
    load,
    profile,
    quantize,
    quantize_and_compile,
)
from quantglow.errors import (
    AccuracyDropError,
    BackendError,
    CalibrationError,
    FileFormatError,
    IgnoredScopeError,
    InputError,
    ModelError,
    OptionError,
    ProfileMismatchError,
    QuantglowError,
    TypeRuleError,
    UnsupportedOpError,
)
from quantglow.graph.graph import Graph
from quantglow.options import IgnoredScope, QuantizationConfig
from quantglow.profiling import Profile
from quantglow.report import Diagnosis, Report
from quantglow.runtime.compiled import CompiledModel
from quantglow.version import __version__

__all__ = [
    "AccuracyDropError",
    "BackendError",
    "CalibrationError",
    "CompiledModel",
    "Diagnosis",
    "FileFormatError",
    "Graph",
    "IgnoredScope",
    "IgnoredScopeError",
    "InputError",
    "ModelError",
    "OptionError",
    "Profile",
    "ProfileMismatchError",
    "QuantglowError",
    "QuantizationConfig",
    "Report",
    "TypeRuleError",
    "UnsupportedOpError",
    "__version__",
    "compile",
    "diagnose",
    "import_model",
    "interpret",
    "load",
    "profile",
    "quantize",
    "quantize_and_compile",
]

"""quantglow inside of onnxruntime: the Python side of the plug-in ``onnxruntime-ep-quantglow``.

The plug-in is a library with onnxruntime's C interface for execution providers.  It asks this side
which nodes of a graph quantglow compiles, compiles them, and gets machine code for each combination
of input shapes; calls run it without Python.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from quantglow.ep.hooks import counts, install
from quantglow.ep.reports import Claim, claims

if TYPE_CHECKING:
    from quantglow.ep.quantizing import quantize
    from quantglow.ep.session_report import SessionReport, report

_PLACES = {
    "SessionReport": "quantglow.ep.session_report",
    "quantize": "quantglow.ep.quantizing",
    "report": "quantglow.ep.session_report",
}
"""Modules of the names that are imported on first use: most sessions quantize nothing."""

__all__ = ["Claim", "SessionReport", "claims", "counts", "install", "quantize", "report"]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_PLACES[name]), name)
    return value

"""quantglow inside of onnxruntime: the Python side of the plug-in ``onnxruntime-ep-quantglow``.

The plug-in is a library with onnxruntime's C interface for execution providers.  It asks this side
which nodes of a graph quantglow compiles, compiles them, and gets machine code for each combination
of input shapes; calls run it without Python.
"""

from quantglow.ep.hooks import counts, install
from quantglow.ep.reports import Claim, claims

__all__ = ["Claim", "claims", "counts", "install"]

"""TFLite files as ONNX, int8 ones in the form of QDQ.

``reading`` has tensors and operators of a file; ``writing`` the nodes of the ONNX model;
``operators`` a rule for each operator.
"""

from __future__ import annotations

from quantglow.converters.tflite.operators import converted

__all__ = ["converted"]

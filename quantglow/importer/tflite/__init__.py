"""TFLite files as ONNX, int8 ones in the form of QDQ.

``files`` reads tensors and operators of a file and writes nodes of the ONNX model; ``operators``
has a rule for each operator.
"""

from __future__ import annotations

from quantglow.importer.tflite.operators import convert

__all__ = ["convert"]

"""``quantglow.ep.quantize``: the model of a session as a QDQ model for the provider."""

from __future__ import annotations

import os
from typing import Any

import onnx

from quantglow.api.quantize_and_compile import quantize_and_compile
from quantglow.ep.sessions import is_session, model_of


def quantize(
    model: Any, samples: Any, path: str | os.PathLike[str] | None = None, **options: Any
) -> onnx.ModelProto:
    """The model in int8, as QDQ: sessions with the provider compute the integers of
    ``quantize_and_compile``, and other providers run it, too.

    model    path, bytes or ModelProto, or an ``onnxruntime.InferenceSession``
    samples  calibration data, in the forms of ``quantize_and_compile``
    path     of a file that is written, too
    options  those of ``quantize_and_compile``

    Raises as ``quantize_and_compile`` and ``CompiledModel.export_onnx`` do, and ``OptionError`` for
    a session that does not know its model.
    """
    source = model_of(model) if is_session(model) else model
    compiled = quantize_and_compile(source, samples, **options)
    if path is not None:
        compiled.export_onnx(path)
    quantized = onnx.ModelProto()
    quantized.ParseFromString(compiled.to_onnx())
    return quantized

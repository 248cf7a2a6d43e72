"""TFLite files of one operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import flatbuffers
import numpy as np
import tflite

CODES = {
    "float32": tflite.TensorType.FLOAT32,
    "int8": tflite.TensorType.INT8,
    "uint8": tflite.TensorType.UINT8,
    "int32": tflite.TensorType.INT32,
    "float16": tflite.TensorType.FLOAT16,
}


@dataclass(frozen=True)
class Part:
    """A tensor of the file; ``scale`` is one number or one for each index of ``axis``."""

    shape: tuple[int, ...]
    dtype: str = "int8"
    scale: float | Sequence[float] | None = None
    zero: int = 0
    axis: int = 0
    value: Any = None
    signature: tuple[int, ...] | None = None


def table(builder: flatbuffers.Builder, kind: str, **values: Any) -> int:
    """A table of flatbuffers: scalars, and offsets of what is there already."""
    getattr(tflite, f"{kind}Start")(builder)
    for name, value in values.items():
        getattr(tflite, f"{kind}Add{name}")(builder, value)
    return int(getattr(tflite, f"{kind}End")(builder))


def vector(builder: flatbuffers.Builder, values: Any, dtype: str = "int32") -> int:
    return int(builder.CreateNumpyVector(np.asarray(values, dtype).reshape(-1)))


def offsets(builder: flatbuffers.Builder, values: Sequence[int]) -> int:
    builder.StartVector(4, len(values), 4)
    for value in reversed(values):
        builder.PrependUOffsetTRelative(value)
    return int(builder.EndVector())


def quantization(b: flatbuffers.Builder, part: Part) -> dict[str, int]:
    if part.scale is None:
        return {}
    scales = np.asarray(part.scale, np.float32).reshape(-1)
    built = {
        "Scale": vector(b, scales, "float32"),
        "ZeroPoint": vector(b, [part.zero] * scales.size, "int64"),
        "QuantizedDimension": part.axis,
    }
    return {"Quantization": table(b, "QuantizationParameters", **built)}


def options_of(b: flatbuffers.Builder, kind: str, values: Mapping[str, Any]) -> dict[str, int]:
    if not kind:
        return {}
    held = {k: vector(b, v) if isinstance(v, tuple) else v for k, v in values.items()}
    number = getattr(tflite.BuiltinOptions, kind)
    return {"BuiltinOptions": table(b, kind, **held), "BuiltinOptionsType": number}


def tflite_file(
    operator: str,
    inputs: Mapping[str, Part],
    output: Part,
    options: str = "",
    **values: Any,
) -> bytes:
    """A file whose only operator takes ``inputs``, constants among them, and gives "result"."""
    b = flatbuffers.Builder(0)
    parts = {**inputs, "result": output}
    buffers, tensors = [table(b, "Buffer")], []
    for name, part in parts.items():
        place = 0
        if part.value is not None:
            data = np.asarray(part.value, part.dtype).tobytes()
            buffers.append(table(b, "Buffer", Data=vector(b, np.frombuffer(data, "u1"), "uint8")))
            place = len(buffers) - 1
        held = {"Shape": vector(b, part.shape), "Name": b.CreateString(name)}
        if part.signature is not None:
            held["ShapeSignature"] = vector(b, part.signature)
        held |= quantization(b, part)
        tensors.append(table(b, "Tensor", **held, Buffer=place, Type=CODES[part.dtype]))
    fed = [i for i, part in enumerate(inputs.values()) if part.value is None]
    ends = {"Inputs": vector(b, range(len(inputs))), "Outputs": vector(b, [len(inputs)])}
    node = table(b, "Operator", OpcodeIndex=0, **ends, **options_of(b, options, values))
    graph = table(
        b,
        "SubGraph",
        Inputs=vector(b, fed),
        Outputs=vector(b, [len(inputs)]),
        Tensors=offsets(b, tensors),
        Operators=offsets(b, [node]),
    )
    number = getattr(tflite.BuiltinOperator, operator)
    code = table(
        b, "OperatorCode", DeprecatedBuiltinCode=min(number, 127), BuiltinCode=number, Version=1
    )
    built = {
        "Buffers": offsets(b, buffers),
        "Subgraphs": offsets(b, [graph]),
        "OperatorCodes": offsets(b, [code]),
    }
    b.Finish(table(b, "Model", **built, Version=3), b"TFL3")
    return bytes(b.Output())

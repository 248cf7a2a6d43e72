"""int8 TFLite files of one operator each, and inputs for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tflite

from tests.support.tflite_builder import Part, tflite_file
from tests.support.tflite_builder import Part as P

SAME, VALID = tflite.Padding.SAME, tflite.Padding.VALID
FUSED = {
    "none": tflite.ActivationFunctionType.NONE,
    "relu": tflite.ActivationFunctionType.RELU,
    "relu6": tflite.ActivationFunctionType.RELU6,
    "relu_n1_to_1": tflite.ActivationFunctionType.RELU_N1_TO_1,
}
IMAGE = P((1, 9, 7, 6), scale=0.05, zero=-7)
WINDOW = {"StrideH": 2, "StrideW": 2}
DILATION = {"DilationHFactor": 1, "DilationWFactor": 1}


def weights(shape: tuple[int, ...], axis: int, seed: int = 0) -> Part:
    """int8 weights with a scale for each output channel."""
    rng = np.random.default_rng(seed)
    scales = rng.uniform(0.004, 0.01, shape[axis]).astype(np.float32)
    value = rng.integers(-127, 128, shape)
    return P(shape, scale=scales.tolist(), axis=axis, value=value)


def bias(x: Part, w: Part, seed: int = 1) -> Part:
    """An int32 bias in steps of the products."""
    value = np.random.default_rng(seed).integers(-2000, 2000, len(w.scale))  # type: ignore[arg-type]
    scales = np.float32(x.scale) * np.asarray(w.scale, np.float32)
    return P((len(value),), "int32", scales.tolist(), value=value)


def conv(padding: int = SAME, fused: str = "none", dilation: int = 1) -> bytes:
    w = weights((8, 3, 3, 6), 0)
    stride = 1 if dilation > 1 else 2
    height, width = (-(-9 // stride), -(-7 // stride)) if padding == SAME else (4, 3)
    size = (1, height, width, 8)
    return tflite_file(
        "CONV_2D",
        {"x": IMAGE, "w": w, "b": bias(IMAGE, w)},
        P(size, scale=0.06, zero=3),
        "Conv2DOptions",
        Padding=padding,
        StrideH=stride,
        StrideW=stride,
        DilationHFactor=dilation,
        DilationWFactor=dilation,
        FusedActivationFunction=FUSED[fused],
    )


def depthwise(multiplier: int = 1, fused: str = "relu6") -> bytes:
    w = weights((1, 3, 3, 6 * multiplier), 3)
    return tflite_file(
        "DEPTHWISE_CONV_2D",
        {"x": IMAGE, "w": w, "b": bias(IMAGE, w)},
        P((1, 5, 4, 6 * multiplier), scale=0.03, zero=-100),
        "DepthwiseConv2DOptions",
        Padding=SAME,
        DepthMultiplier=multiplier,
        FusedActivationFunction=FUSED[fused],
        **WINDOW,
        **DILATION,
    )


def fully_connected(keep: bool = False, fused: str = "none") -> bytes:
    x = P((2, 3, 4) if keep else (6, 4), scale=0.04, zero=5)
    w = P((5, 4), scale=[0.01], value=weights((5, 4), 0).value)
    b = P((5,), "int32", [0.04 * 0.01], value=np.arange(-200, 300, 100))
    return tflite_file(
        "FULLY_CONNECTED",
        {"x": x, "w": w, "b": b},
        P((2, 3, 5) if keep else (6, 5), scale=0.05, zero=-3),
        "FullyConnectedOptions",
        KeepNumDims=keep,
        FusedActivationFunction=FUSED[fused],
    )


def two(kind: str, options: str, fused: str = "none", shape: Any = (1, 9, 7, 6)) -> bytes:
    other = P(shape, scale=0.03, zero=11)
    more = {"FusedActivationFunction": FUSED[fused]} if "Maximum" not in options else {}
    scale = (0.05, -7) if kind in ("MAXIMUM", "MINIMUM") else (0.08, 2)
    other = P(shape, scale=0.05, zero=-7) if kind in ("MAXIMUM", "MINIMUM") else other
    result = P((1, 9, 7, 6), scale=scale[0], zero=scale[1])
    return tflite_file(kind, {"x": IMAGE, "y": other}, result, options, **more)


def pool(kind: str, padding: int = VALID, fused: str = "none") -> bytes:
    size = (1, 4, 3, 6) if padding == VALID else (1, 5, 4, 6)
    return tflite_file(
        kind,
        {"x": IMAGE},
        P(size, scale=0.05, zero=-7),
        "Pool2DOptions",
        Padding=padding,
        FilterHeight=2,
        FilterWidth=3 if padding == SAME else 2,
        FusedActivationFunction=FUSED[fused],
        **WINDOW,
    )


def one(kind: str, scale: float, zero: int, options: str = "", **values: Any) -> bytes:
    return tflite_file(
        kind, {"x": IMAGE}, P(IMAGE.shape, scale=scale, zero=zero), options, **values
    )


def softmax(beta: float) -> bytes:
    x = P((7, 11), scale=0.08, zero=4)
    result = P((7, 11), scale=1 / 256, zero=-128)
    return tflite_file("SOFTMAX", {"x": x}, result, "SoftmaxOptions", Beta=beta)


def moved(
    kind: str, shape: tuple[int, ...], constant: Any, options: str = "", **more: Any
) -> bytes:
    held = P(np.shape(constant), "int32", value=constant)
    result = P(shape, scale=0.05, zero=-7)
    return tflite_file(kind, {"x": IMAGE, "constant": held}, result, options, **more)


def concatenation(same: bool) -> bytes:
    other = P((1, 9, 7, 2), scale=0.05, zero=-7)
    p = P((1, 9, 7, 3), scale=0.05, zero=-7)
    result = P((1, 9, 7, 11), scale=0.05, zero=-7)
    fused = {"FusedActivationFunction": FUSED["none"]}
    inputs = {"x": IMAGE, "y": other, "z": p} if same else {"x": IMAGE, "y": other}
    result = result if same else P((1, 9, 7, 8), scale=0.05, zero=-7)
    return tflite_file("CONCATENATION", inputs, result, "ConcatenationOptions", Axis=-1, **fused)


def mean(keep: bool, scale: float) -> bytes:
    axes = P((2,), "int32", value=[1, 2])
    result = P((1, 1, 1, 6) if keep else (1, 6), scale=scale, zero=-20)
    inputs = {"x": IMAGE, "axes": axes}
    return tflite_file("MEAN", inputs, result, "ReducerOptions", KeepDims=keep)


def converted(kind: str, inputs: Part, result: Part) -> bytes:
    return tflite_file(kind, {"x": inputs}, result)


CASES: dict[str, Callable[[], bytes]] = {
    "conv": conv,
    "conv-valid-relu": lambda: conv(VALID, "relu"),
    "conv-relu6": lambda: conv(fused="relu6"),
    "conv-dilated": lambda: conv(dilation=2),
    "depthwise": depthwise,
    "depthwise-multiplied": lambda: depthwise(2, "none"),
    "fully-connected": fully_connected,
    "fully-connected-kept": lambda: fully_connected(True, "relu"),
    "add": lambda: two("ADD", "AddOptions"),
    "add-relu": lambda: two("ADD", "AddOptions", "relu"),
    "add-row": lambda: two("ADD", "AddOptions", shape=(1, 1, 1, 6)),
    "sub": lambda: two("SUB", "SubOptions", "relu_n1_to_1"),
    "mul": lambda: two("MUL", "MulOptions"),
    "maximum": lambda: two("MAXIMUM", "MaximumMinimumOptions"),
    "minimum": lambda: two("MINIMUM", "MaximumMinimumOptions"),
    "average-pool": lambda: pool("AVERAGE_POOL_2D"),
    "average-pool-padded": lambda: pool("AVERAGE_POOL_2D", SAME, "relu"),
    "max-pool": lambda: pool("MAX_POOL_2D"),
    "max-pool-padded": lambda: pool("MAX_POOL_2D", SAME, "relu6"),
    "softmax": lambda: softmax(1.0),
    "softmax-beta": lambda: softmax(0.5),
    "logistic": lambda: one("LOGISTIC", 1 / 256, -128),
    "tanh": lambda: one("TANH", 1 / 128, 0),
    "hard-swish": lambda: one("HARD_SWISH", 0.04, -60),
    "leaky-relu": lambda: one("LEAKY_RELU", 0.06, -30, "LeakyReluOptions", Alpha=0.1),
    "relu": lambda: one("RELU", 0.05, -7),
    "relu6": lambda: one("RELU6", 6 / 255, -128),
    "reshape": lambda: moved(
        "RESHAPE", (1, 63, 6), (1, 63, 6), "ReshapeOptions", NewShape=(1, 63, 6)
    ),
    "transpose": lambda: moved("TRANSPOSE", (1, 6, 9, 7), (0, 3, 1, 2)),
    "pad": lambda: moved("PAD", (1, 12, 8, 6), ((0, 0), (1, 2), (0, 1), (0, 0)), "PadOptions"),
    "concatenation": lambda: concatenation(False),
    "concatenation-three": lambda: concatenation(True),
    "mean": lambda: mean(False, 0.02),
    "mean-kept": lambda: mean(True, 0.05),
    "quantize": lambda: converted("QUANTIZE", P((3, 5), "float32"), P((3, 5), scale=0.03, zero=4)),
    "requantize": lambda: converted("QUANTIZE", IMAGE, P(IMAGE.shape, scale=0.07, zero=1)),
    "dequantize": lambda: converted("DEQUANTIZE", IMAGE, P(IMAGE.shape, "float32")),
}
"""By name: the file of one operator."""


def inputs_of(shapes: Any, seed: int) -> list[Any]:
    """Inputs of (shape, dtype): the whole range of int8, or normal floats."""
    rng = np.random.default_rng(seed)
    return [
        rng.integers(-128, 128, shape).astype(np.int8)
        if np.dtype(dtype) == np.int8
        else rng.standard_normal(shape).astype(np.float32)
        for shape, dtype in shapes
    ]

"""Operators of windows: convolutions and pools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.generators.onnx_models.drawing import Drawing, Rejected, Value
from tests.generators.onnx_models.operators.family import draws


def ranks(d: Drawing) -> tuple[int, ...]:
    """Signals and images, or volumes."""
    return (5,) if d.chance(0.15) else (3, 4)


@draws("Conv", "ConvTranspose", often=4)
def convolution(d: Drawing) -> object:
    if d.chance(0.1):
        return d.choose((filter_bank, wide_filter))(d)
    x = d.floats(*ranks(d))
    channels, spatial = x.shape[1], x.shape[2:]
    group = d.choose([g for g in (1, 1, 2, channels) if channels % g == 0])
    if d.chance(0.25):
        return transposed(d, x, group)
    outputs = group * d.choose((1, 2, 3, 5))
    kernel = [d.integer(1, min(size + 1, 5)) for size in spatial]
    w = d.weights(outputs, channels // group, *kernel)
    b = (d.normal(outputs),) if d.chance(0.7) else ()
    attributes = window(d, kernel)
    refuse_outside(attributes, kernel, spatial)
    return d.node("Conv", x, w, *b, group=group, kernel_shape=kernel, **attributes)


def filter_bank(d: Drawing) -> object:
    """Windowed cosines or sines of one signal, of which some columns are read."""
    signal = d.inner("Reshape", d.floats(2, 3), d.constant(np.array([1, 1, -1])))
    long = d.inner("Tile", signal, d.constant(np.array([1, 1, 1 + 160 // signal.size])))
    taps, channels, shift = 32, 128, d.integer(0, 1)
    n = np.arange(taps)[:, None] + shift / 2 - taps / 2
    phases = 2 * np.pi * n * np.arange(channels) / (taps - shift)
    half = d.choose((0, channels // 2, channels))
    w = np.concatenate([np.cos(phases[:, :half]), np.sin(phases[:, half:])], axis=1)
    weights = d.constant(np.ascontiguousarray(w.T[:, None], dtype=np.float32))
    actual = d.inner("Conv", long, weights, strides=[d.choose((8, 16, 32))])
    first = d.integer(0, 1)
    ends = [d.constant(np.array([value])) for value in (first, actual.shape[2], 2)]
    return d.node("Slice", actual, *ends)


def wide_filter(d: Drawing) -> object:
    """Three taps along rows of many channels."""
    x = d.floats(3)
    wide = d.inner("Conv", x, d.weights(48, x.shape[1], 1))
    pads = [d.integer(0, 1), d.integer(0, 2)]
    refuse_outside({"pads": pads}, [3], wide.shape[2:])
    b = (d.normal(49),) if d.chance(0.7) else ()
    return d.node("Conv", wide, d.weights(49, 48, 3), *b, pads=pads)


def refuse_outside(attributes: dict[str, Any], kernel: Sequence[int], sizes: Sequence[int]) -> None:
    """Raise ``Rejected`` for a window larger than its padded input, which shape inference
    accepts.
    """
    pads = attributes.get("pads", [0] * 2 * len(kernel))
    steps = attributes.get("dilations", [1] * len(kernel))
    padded = [sum(ends) for ends in zip(sizes, pads, pads[len(kernel) :], strict=False)]
    if any((k - 1) * s >= p for k, s, p in zip(kernel, steps, padded, strict=True)):
        raise Rejected("the window is larger than its input")


def transposed(d: Drawing, x: Value, group: int) -> object:
    kernel = [d.integer(1, 3) for _ in x.shape[2:]]
    w = d.weights(x.shape[1], d.integer(1, 4), *kernel)
    attributes: dict[str, Any] = {
        "strides": [d.integer(1, 3) for _ in kernel],
        "pads": [d.integer(0, k // 2) for k in kernel] * 2,
    }
    if d.chance(0.3):
        attributes["output_padding"] = [d.integer(0, s - 1) for s in attributes["strides"]]
    return d.node("ConvTranspose", x, w, group=group, kernel_shape=kernel, **attributes)


def window(d: Drawing, kernel: Sequence[int], dilated: bool = True) -> dict[str, Any]:
    """Strides, pads and dilations of a window."""
    attributes: dict[str, Any] = {"strides": [d.integer(1, 3) for _ in kernel]}
    if dilated and d.chance(0.3):
        attributes["dilations"] = [d.integer(1, 2) for _ in kernel]
    # onnxruntime leaves dilations out of automatic pads, against ONNX; and where strides leave
    # elements out, the pads would be negative, of which ONNX says nothing.
    covered = all(s <= k for s, k in zip(attributes["strides"], kernel, strict=True))
    if d.chance(0.2) and covered and "dilations" not in attributes:
        attributes["auto_pad"] = d.choose(("SAME_UPPER", "SAME_LOWER", "VALID"))
    elif d.chance(0.7):
        attributes["pads"] = [d.integer(0, k // 2) for _ in range(2) for k in kernel]
    return attributes


@draws("MaxPool", "AveragePool", "LpPool", often=2)
def pool(d: Drawing) -> object:
    x = d.floats(*ranks(d))
    kernel = [d.integer(1, min(size, 4)) for size in x.shape[2:]]
    op = d.choose(("MaxPool", "AveragePool", "LpPool"))
    # A dilated window beyond the input has no meaning; onnxruntime gives a result all the same.
    roomy = all(2 * k - 1 <= size for k, size in zip(kernel, x.shape[2:], strict=True))
    attributes = window(d, kernel, dilated=roomy and op == "MaxPool")
    if op == "AveragePool":
        attributes["count_include_pad"] = d.integer(0, 1)
    if op == "LpPool":
        attributes["p"] = d.integer(1, 3)
    if (op != "LpPool" or d.opset >= 18) and rounds_up_clearly(kernel, x.shape[2:], attributes):
        attributes["ceil_mode"] = d.integer(0, 1)
    return d.node(op, x, kernel_shape=kernel, **attributes)


def rounds_up_clearly(kernel: Sequence[int], sizes: Sequence[int], inputs: dict[str, Any]) -> bool:
    """Whether every window of a rounded-up pool begins inside the input.

    ONNX's shape inference counts windows that begin in the padding behind it; runtimes do not.
    """
    if inputs.get("auto_pad", "VALID") != "VALID":
        return False
    pads = inputs.get("pads", [0] * 2 * len(kernel))
    dilations = inputs.get("dilations", [1] * len(kernel))
    for i, (k, size, stride) in enumerate(zip(kernel, sizes, inputs["strides"], strict=True)):
        begin, end = pads[i], pads[i + len(kernel)]
        span = (k - 1) * dilations[i] + 1
        last = -(-(size + begin + end - span) // stride)
        if last * stride >= size + begin:
            return False
    return True


@draws("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(d: Drawing) -> object:
    # onnxruntime has GlobalLpPool as it was up to opset 21.
    op = d.choose(("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")[: 3 - (d.opset > 21)])
    return d.node(
        op, d.floats(*ranks(d)), **({"p": d.integer(1, 3)} if op == "GlobalLpPool" else {})
    )


@draws("CausalConvWithState")
def causal(d: Drawing) -> object:
    x = d.floats(3)
    channels, k = x.shape[1], d.integer(1, 4)
    state = d.normal(x.shape[0], channels, k - 1) if k > 1 and d.chance(0.5) else None
    b = d.normal(channels) if d.chance(0.6) else None
    activation = d.some({"activation": ("none", "silu", "swish")})
    outputs = 2 if k > 1 and d.chance(0.5) else 1
    w = d.weights(channels, 1, k)
    return d.node("CausalConvWithState", x, w, b, state, outputs=outputs, **activation)

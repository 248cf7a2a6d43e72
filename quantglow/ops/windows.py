"""Windows over the height and width of images, for convolutions and pools."""

from __future__ import annotations

from quantglow.graph.node import Node

Pair = tuple[int, int]
Pads = tuple[int, int, int, int]
"""Top, left, bottom, right."""


LARGEST_WINDOW = 2**16
"""Elements along an axis; files ask for more only when they are damaged."""


def check_windows(
    node: Node, kernel: Pair, strides: Pair, dilations: Pair, pads: Pads = (0, 0, 0, 0)
) -> None:
    """Raise ``TypeRuleError`` unless every tap of every window lies in the padded input."""
    if min(*kernel, *strides, *dilations) < 1:
        raise node.refuse(f"kernel {kernel}, strides {strides}, dilations {dilations} must be > 0")
    if min(pads) < 0:
        raise node.refuse(f"pads {pads} must not be negative: what cuts is a Slice")
    if max(*kernel, *strides, *dilations, *pads) > LARGEST_WINDOW:
        raise node.refuse(f"windows, steps and pads may be {LARGEST_WINDOW} wide at most")


def window_count(
    size: int, kernel: int, stride: int, dilation: int, before: int, after: int
) -> int:
    """Windows along one axis: ``floor((size + pads - dilated kernel) / stride) + 1``."""
    return (size + before + after - (dilation * (kernel - 1) + 1)) // stride + 1

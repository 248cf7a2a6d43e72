"""Kernel, strides, dilations and pads of convolutions and pools, with ``auto_pad`` resolved."""

from __future__ import annotations

from dataclasses import dataclass

from quantglow.frontend.nodes.context import Call, Unsupported
from quantglow.ops.windows import Pads, Pair


@dataclass(frozen=True)
class Windows:
    """Pairs are (H, W); pads top, left, bottom, right."""

    kernel: Pair
    strides: Pair
    dilations: Pair
    pads: Pads

    @property
    def reach(self) -> Pair:
        """Extent of the dilated kernel."""
        (dh, dw), (kh, kw) = self.dilations, self.kernel
        return dh * (kh - 1) + 1, dw * (kw - 1) + 1


def windows_of(call: Call, kernel: tuple[int, ...]) -> Windows:
    """The attributes of ``call``, whose pads (if explicit) belong to its input."""
    rank = len(kernel)
    pads = spatial_pads(call, rank)
    return Windows(
        kernel=pair(kernel),
        strides=pair(call.integers("strides", (1,) * rank)),
        dilations=pair(call.integers("dilations", (1,) * rank)),
        pads=(*pair(pads[:rank], 0), *pair(pads[rank:], 0)),
    )


def spatial_pads(call: Call, rank: int) -> tuple[int, ...]:
    """Explicit pads before all ``rank`` axes, then behind them."""
    pads = call.integers("pads", (0,) * 2 * rank)
    if len(pads) != 2 * rank:
        raise ValueError(f"pads {pads} do not fit {rank} spatial axes")
    if min(pads) < 0:
        raise Unsupported(f"negative pads {list(pads)}")
    return pads


def pair(values: tuple[int, ...], absent: int = 1) -> Pair:
    """(H, W) of attributes with one or two entries; one spatial axis becomes W."""
    if len(values) not in (1, 2):
        raise Unsupported(f"{len(values)} spatial axes are too many")
    if min(values) < absent:
        raise ValueError(f"{values} must be at least {absent}")
    return (values[0], values[1]) if len(values) == 2 else (absent, values[0])


def auto_padded(call: Call, windows: Windows, size: Pair) -> Pads:
    """Pads of windows that run over an input of ``size``."""
    mode = call.text("auto_pad", "NOTSET")
    if mode in ("NOTSET", ""):
        return windows.pads
    if mode == "VALID":
        return (0, 0, 0, 0)
    totals = [
        max((-(-d // s) - 1) * s + r - d, 0)
        for d, s, r in zip(size, windows.strides, windows.reach, strict=True)
    ]
    return shared_out(totals, upper=mode == "SAME_UPPER")


def shared_out(totals: list[int], upper: bool) -> Pads:
    """Padding divided between both ends; an odd row goes to the end if ``upper``."""
    small, large = [t // 2 for t in totals], [t - t // 2 for t in totals]
    before, after = (small, large) if upper else (large, small)
    return (before[0], before[1], after[0], after[1])

"""The int8 quantizers that ``accuracy`` compares: functions from network and feeds to runtime."""

from __future__ import annotations

import fnmatch
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import quantglow as qg
from benchmarks.networks.network import Feeds, Network
from benchmarks.support import peer_runtimes
from benchmarks.support.runtime import Runtime, shaped
from quantglow.evaluation.baselines import openvino_quantizer
from quantglow.quantization.options import EQUALIZATIONS

Quantize = Callable[[Network, list[Feeds], int], Runtime]
"""(network, calibration feeds, threads) -> the quantized network, ready to run."""


class NotInstalledError(RuntimeError):
    """Packages of a quantizer are missing; the message has the pip command."""


@dataclass(frozen=True)
class Quantizer:
    """A quantizer with its settings; quantglow's margin is measured against each ``peer``.

    ``needs``: modules that are imported before time and memory are measured.
    """

    name: str
    quantize: Quantize
    needs: tuple[str, ...] = ()
    peer: bool = True

    def require(self) -> None:
        """Raise ``NotInstalledError`` if a package is missing."""
        if missing := [name for name in self.needs if find_spec(name) is None]:
            raise NotInstalledError(
                f"not installed: {', '.join(missing)} (pip install 'quantglow[bench]')"
            )


def ours(network: Network, feeds: list[Feeds], threads: int, **options: Any) -> Runtime:
    """``quantize_and_compile``; options are those of ``QuantizationConfig``."""
    graph = qg.import_model(shaped(network, 1))
    profile = qg.profile(graph, feeds, subset_size=len(feeds), progress=False)
    int8 = qg.quantize(graph, profile, qg.QuantizationConfig(**options), data=feeds)
    compiled = qg.compile(int8, num_threads=threads)
    return Runtime("quantglow", lambda sample: list(compiled.run(None, sample)), save=compiled.save)


def packed(network: Network, feeds: list[Feeds], threads: int, **options: Any) -> Runtime:
    """Weights in groups, rounded for the feeds, and all else in float."""
    options = {"verify": False, "progress": False, "num_threads": threads, **options}
    compiled: Any = qg.quantize_and_compile(shaped(network, 1), feeds, **options)
    return Runtime("quantglow", lambda sample: list(compiled.run(None, sample)), save=compiled.save)


def onnxruntime(network: Network, feeds: list[Feeds], threads: int, method: str) -> Runtime:
    """``quantize_static`` with one of its calibrators."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "int8.onnx"
        peer_runtimes.quantize_onnx(shaped(network, 1), target, feeds, method)
        return peer_runtimes.onnxruntime_session("onnxruntime", target, threads, exact_sums=True)


def nncf(network: Network, feeds: list[Feeds], threads: int, **options: Any) -> Runtime:
    """``nncf.quantize`` on OpenVINO's model, all samples used."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.xml"
        openvino_quantizer.quantize_file(shaped(network, 1), path, feeds, **options)
        return peer_runtimes.openvino_compiled("nncf", path, threads)


UNALIGNED = tuple(name for name in EQUALIZATIONS if name != "align-inputs")
UNFUSED = tuple(name for name in EQUALIZATIONS if name != "fuse-functions")
_OURS = ("quantglow.api.quantize_and_compile",)
_ORT = ("onnxruntime.quantization",)
_NNCF = ("openvino", "nncf")
QUANTIZERS = {
    value.name: value
    for value in (
        Quantizer("quantglow", ours, _OURS, peer=False),
        Quantizer("quantglow fast", partial(ours, effort="fast"), _OURS, peer=False),
        Quantizer("quantglow best", partial(ours, effort="best"), _OURS, peer=False),
        Quantizer("quantglow int16", partial(ours, int16_activations="auto"), _OURS, peer=False),
        Quantizer(
            "quantglow without align-inputs",
            partial(ours, equalization=UNALIGNED),
            _OURS,
            peer=False,
        ),
        Quantizer(
            "quantglow without fuse-functions",
            partial(ours, equalization=UNFUSED),
            _OURS,
            peer=False,
        ),
        Quantizer("quantglow without recovery", partial(ours, recovery=()), _OURS, peer=False),
        Quantizer("quantglow int8 weights", partial(packed, weights="int8"), _OURS, peer=False),
        Quantizer("quantglow int4 weights", partial(packed, weights="int4"), _OURS, peer=False),
        Quantizer("onnxruntime minmax", partial(onnxruntime, method="MinMax"), _ORT),
        Quantizer("onnxruntime percentile", partial(onnxruntime, method="Percentile"), _ORT),
        Quantizer("onnxruntime entropy", partial(onnxruntime, method="Entropy"), _ORT),
        Quantizer("nncf", nncf, _NNCF),
        Quantizer("nncf mixed", partial(nncf, preset="MIXED"), _NNCF),
        Quantizer(
            "nncf mixed, full bias correction",
            partial(nncf, preset="MIXED", fast_bias_correction=False),
            _NNCF,
        ),
    )
}


def chosen(names: Iterable[str]) -> list[Quantizer]:
    """The quantizers of these names or shell patterns.  Raises ``ValueError``."""
    actual: dict[str, Quantizer] = {}
    for name in names:
        fitting = {n: QUANTIZERS[n] for n in fnmatch.filter(QUANTIZERS, name)}
        if not fitting:
            raise ValueError(f"no quantizer {name!r}; there are {', '.join(QUANTIZERS)}")
        actual |= fitting
    return list(actual.values())

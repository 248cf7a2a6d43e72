"""Files of a network with free dimensions, quantized or not, that each runtime loads."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import onnxruntime

import quantglow as qg
from benchmarks.networks.free_networks import FreeNetwork
from benchmarks.support.peer_runtimes import quantize_onnx, quantize_openvino, require_openvino
from tools.downloads.model_cache import cached, content_key

Maker = Callable[[FreeNetwork, int, Path], Path]
"""(network, calibration samples, folder for files that are not kept) -> file."""


def quantglow_float(network: FreeNetwork, samples: int, folder: Path) -> Path:
    """The saved model.  Nothing can be saved before a first run, so it has one program."""
    compiled: Any = qg.compile(network.source())
    compiled.run(None, network.calibration(1)[0])
    return saved(compiled, folder / "float.qgm")


def quantglow_int8(network: FreeNetwork, samples: int, folder: Path) -> Path:
    """The saved model.  Ranges come from a profile, as accuracy recovery does not matter here."""
    feeds = network.calibration(samples)
    profile = qg.profile(network.source(), feeds, progress=False)
    compiled: Any = qg.quantize_and_compile(network.source(), profile, verify=False)
    return saved(compiled, folder / "int8.qgm")


def saved(compiled: Any, path: Path) -> Path:
    compiled.save(path)
    return path


def onnx_file(network: FreeNetwork, samples: int, folder: Path) -> Path:
    """The float model."""
    return network.source()


def onnxruntime_int8(network: FreeNetwork, samples: int, folder: Path) -> Path:
    """The QDQ model of ``quantize_static``."""
    source = network.source()
    settings = ("qdq", "u8s8", "per-channel", "minmax", samples, onnxruntime.__version__)
    name = f"{network.name}-free-ort-int8-{content_key(source, *settings)}.onnx"
    feeds = network.calibration(samples)
    return cached(name, lambda target: quantize_onnx(source, target, feeds))


def openvino_float(network: FreeNetwork, samples: int, folder: Path) -> Path:
    """The float model, which OpenVINO reads from the ONNX file."""
    require_openvino()
    return network.source()


def openvino_int8(network: FreeNetwork, samples: int, folder: Path) -> Path:
    """NNCF's model."""
    require_openvino()
    import nncf

    source = network.source()
    name = f"{network.name}-free-openvino-int8-{content_key(source, samples, nncf.__version__)}"
    feeds = network.calibration(samples)
    return cached(name, lambda target: quantize_openvino(source, target, feeds)) / "model.xml"


MAKERS: dict[str, Maker] = {
    "quantglow float": quantglow_float,
    "quantglow int8": quantglow_int8,
    "onnxruntime float": onnx_file,
    "onnxruntime int8": onnxruntime_int8,
    "openvino float": openvino_float,
    "openvino int8": openvino_int8,
}


def model_file(runtime: str, network: FreeNetwork, samples: int, folder: Path) -> Path:
    """The file that a runtime loads; messages of quantizers go to stderr."""
    with redirect_stdout(sys.stderr):
        return MAKERS[runtime](network, samples, folder)

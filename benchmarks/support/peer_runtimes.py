"""onnxruntime and OpenVINO at their best settings for small-batch latency.

Each maker returns a ready `Runtime`.  Quantized models are kept in the cache, keyed by the model's
content and every setting.
"""

from __future__ import annotations

import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from benchmarks.networks.network import Feeds, Network
from benchmarks.support.runtime import Runtime, shaped
from quantglow.evaluation.baselines import onnxruntime_quantizer, openvino_quantizer
from quantglow.ort.quantizer_input import quantizer_input
from quantglow.ort.session import EXACT_SUMS
from tools.downloads.model_cache import cached, content_key


def onnxruntime_session(
    name: str, path: Path, threads: int, *, exact_sums: bool = False
) -> Runtime:
    """All optimizations, ``threads`` inside an operator, operators one after the other;
    ``exact_sums``: int8 is exact on x86 without VNNI, too, and slower there.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 3
    if exact_sums:
        options.add_session_config_entry(EXACT_SUMS, "1")
    session = ort.InferenceSession(str(path), options, ["CPUExecutionProvider"])

    def run(feeds: Feeds) -> list[NDArray[Any]]:
        outputs: Any = session.run(None, feeds)
        return list(outputs)

    return Runtime(name, run)


def onnxruntime_float(network: Network, threads: int, batch: int, samples: int) -> Runtime:
    """The float model; ``samples`` is not used."""
    return onnxruntime_session("onnxruntime float", shaped(network, batch), threads)


def quantize_onnx(source: Path, target: Path, feeds: list[Feeds], method: str = "MinMax") -> None:
    """``onnxruntime_quantizer.quantize_file`` of any ONNX file."""
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "plain.onnx"
        plain.write_bytes(quantizer_input(source, {}).SerializeToString())
        onnxruntime_quantizer.quantize_file(plain, target, feeds, method)


def onnxruntime_int8_file(network: Network, batch: int, samples: int) -> Path:
    """The QDQ model, quantized on ``samples`` samples if it is not in the cache."""
    source = shaped(network, batch)
    key = content_key(source, "qdq", "u8s8", "per-channel", "minmax", samples, ort.__version__)
    feeds = network.calibration(samples, batch)
    name = f"{network.name}-b{batch}-ort-int8-{key}.onnx"
    return cached(name, lambda target: quantize_onnx(source, target, feeds))


def onnxruntime_int8(network: Network, threads: int, batch: int, samples: int) -> Runtime:
    """A session of the QDQ model."""
    path = onnxruntime_int8_file(network, batch, samples)
    return onnxruntime_session("onnxruntime int8", path, threads)


def require_openvino() -> None:
    """Raise ``ModuleNotFoundError`` with the pip command if OpenVINO or NNCF is missing."""
    missing = [name for name in ("openvino", "nncf") if find_spec(name) is None]
    if missing:
        raise ModuleNotFoundError(
            f"the peer openvino needs {' and '.join(missing)}: pip install 'quantglow[bench]', or "
            "leave it out of --peers"
        )


def openvino_request(model: Any, threads: int, dynamic: bool = False) -> Any:
    """LATENCY hint, float32 for what is not int8, one stream.

    ``dynamic``: products with compressed weights round activations to int8, in groups of 32.
    """
    import openvino

    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
        "NUM_STREAMS": 1,
        "INFERENCE_NUM_THREADS": threads,
        **({"DYNAMIC_QUANTIZATION_GROUP_SIZE": 32} if dynamic else {}),
    }
    return openvino.Core().compile_model(model, "CPU", settings).create_infer_request()


def openvino_compiled(name: str, path: Path, threads: int) -> Runtime:
    """A request whose inputs and outputs are not copied."""
    request = openvino_request(path, threads)

    def run(feeds: Feeds) -> list[NDArray[Any]]:
        outputs = request.infer(feeds, share_inputs=True, share_outputs=True)
        return [np.asarray(outputs[index]) for index in range(len(outputs))]

    return Runtime(name, run)


def openvino_float(network: Network, threads: int, batch: int, samples: int) -> Runtime:
    """The float model, which OpenVINO reads from the ONNX file; ``samples`` is not used."""
    require_openvino()
    return openvino_compiled("openvino float", shaped(network, batch), threads)


def quantize_openvino(source: Path, target: Path, feeds: list[Feeds]) -> None:
    """NNCF's default ``quantize``; ``target`` is a new folder for model.xml and model.bin."""
    target.mkdir()
    openvino_quantizer.quantize_file(source, target / "model.xml", feeds)


def openvino_int8_file(network: Network, batch: int, samples: int) -> Path:
    """The folder of NNCF's model, quantized on ``samples`` samples if it is not in the cache."""
    require_openvino()
    import nncf

    source = shaped(network, batch)
    key = content_key(source, "nncf", samples, nncf.__version__)
    feeds = network.calibration(samples, batch)
    name = f"{network.name}-b{batch}-openvino-int8-{key}"
    return cached(name, lambda target: quantize_openvino(source, target, feeds))


def openvino_int8(network: Network, threads: int, batch: int, samples: int) -> Runtime:
    """A request of NNCF's model."""
    folder = openvino_int8_file(network, batch, samples)
    return openvino_compiled("openvino int8", folder / "model.xml", threads)

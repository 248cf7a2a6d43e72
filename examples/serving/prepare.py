"""Write the folders that MLServer serves: ``python prepare.py FOLDER [RUNTIME ...]``.

The network is PP-OCR's classifier of the direction of a line, in int8: as a ``.qgm`` for
quantglow, as ONNX with QuantizeLinear for onnxruntime.  Replace it by your own.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import quantglow as qg
from quantglow.cli.demo import ocr_direction

MODEL, INPUT = "lines", "x"
OPTIONS = {"num_threads": 2, "streams": 2, "max_waiting": 16}
BATCHES = {"max_batch": 8, "max_delay": 0.001}
CLASSES = {
    "quantglow": "runtimes.QuantglowRuntime",
    "onnxruntime": "runtimes.OnnxRuntimeRuntime",
    "onnxruntime-float": "runtimes.OnnxRuntimeRuntime",
}


def prepare(folder: Path, runtimes: list[str], port: int = 8080) -> None:
    """Make a folder for each runtime, and in it the model, its settings and the server's."""
    example = ocr_direction()
    compiled = qg.quantize_and_compile(example.model, example.calibration, verify=False)
    shape = list(example.calibration.shape[1:])
    for runtime in runtimes:
        own = folder / runtime
        (own / MODEL).mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(__file__).with_name("runtimes.py"), own / MODEL)
        extra: dict[str, Any] = dict(OPTIONS)
        if runtime == "quantglow":
            uri = "model.qgm"
            compiled.save(own / MODEL / uri)
            extra |= BATCHES | {"warm_up": [{INPUT: [1, *shape]}]}
        else:
            uri = "model.onnx"
            if runtime.endswith("float"):
                shutil.copy(example.model, own / MODEL / uri)
            else:
                compiled.export_onnx(own / MODEL / uri)
        write_settings(own / MODEL, CLASSES[runtime], uri, extra)
        server = {"host": "127.0.0.1", "http_port": port, "parallel_workers": 0, "debug": False}
        server |= {"grpc_port": port + 1, "metrics_port": port + 2}
        (own / "settings.json").write_text(json.dumps(server, indent=2))


def write_settings(folder: Path, implementation: str, uri: str, extra: dict[str, Any]) -> None:
    """Write a model's settings.

    They have no version: MLServer answers from the old model until the new one is ready only if
    both have the same.
    """
    parameters = {"uri": f"./{uri}", "extra": extra}
    found = {"name": MODEL, "implementation": implementation, "parameters": parameters}
    (folder / "model-settings.json").write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    prepare(Path(sys.argv[1]), sys.argv[2:] or ["quantglow"])

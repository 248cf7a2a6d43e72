"""Quantize a trained classifier of digits as its module, serve it, and ask for 200 digits."""

from __future__ import annotations

import json
import shutil
import sys
import urllib.request
from pathlib import Path
from typing import Any

import load_test
import numpy as np
import onnx
import prepare
import torch
from onnx import numpy_helper

import quantglow as qg

DATASETS = Path(__file__).parents[2] / "datasets"
SERVED, LEAST_SHARE = 200, 0.98


def trained() -> torch.nn.Module:
    """The user's network."""
    layers: list[Any] = []
    for before, after in ((1, 16), (16, 32), (32, 64)):
        layers.append(torch.nn.Conv2d(before, after, 3, padding=1, bias=False))
        layers += [torch.nn.BatchNorm2d(after), torch.nn.ReLU(), torch.nn.MaxPool2d(2)]
    network = torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(576, 10))
    held = onnx.load(DATASETS / "mnist_cnn.onnx").graph.initializer
    weights = {t.name: torch.from_numpy(numpy_helper.to_array(t).copy()) for t in held}
    network.load_state_dict(weights, strict=False)
    return network.eval()


def images(name: str) -> torch.Tensor:
    """Images [count, 1, 28, 28]."""
    pixels = np.load(DATASETS / "mnist_test.npz")[name][:SERVED]
    return torch.from_numpy(pixels[:, None].astype(np.float32) / 255)


def served(folder: Path, compiled: Any, name: str, shape: list[int]) -> int:
    """Write what MLServer serves; the port."""
    ours, port = folder / prepare.MODEL, load_test.free_port()
    ours.mkdir(parents=True)
    shutil.copy(Path(prepare.__file__).with_name("runtimes.py"), ours)
    compiled.save(ours / "model.qgm")
    extra = {**prepare.OPTIONS, "warm_up": [{name: shape}]}
    prepare.write_settings(ours, prepare.CLASSES["quantglow"], "model.qgm", extra)
    ports = {"http_port": port, "grpc_port": port + 1, "metrics_port": port + 2}
    settings = {"host": "127.0.0.1", "parallel_workers": 0, **ports}
    (folder / "settings.json").write_text(json.dumps(settings))
    return port


def answer(port: int, name: str, image: np.ndarray) -> int:
    """The digit that the server sees."""
    shape, data = list(image.shape), image.ravel().tolist()
    inputs = {"name": name, "shape": shape, "datatype": "FP32", "data": data}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v2/models/{prepare.MODEL}/infer",
        json.dumps({"inputs": [inputs]}).encode(),
        {"Content-Type": "application/json"},
    )
    reply = json.loads(urllib.request.urlopen(request, timeout=10).read())
    return int(np.argmax(reply["outputs"][0]["data"]))


def main(folder: Path) -> int:
    network, digits = trained(), images("images")
    compiled = qg.quantize_and_compile(
        network, [(image[None],) for image in images("calibration_images")]
    )
    print(compiled.report)
    name = compiled.get_inputs()[0].name
    port = served(folder, compiled, name, [1, 1, 28, 28])
    server = load_test.start(folder, port)
    try:
        actual = [answer(port, name, image[None].numpy()) for image in digits]
    finally:
        server.terminate()
        server.wait(30)
    with torch.no_grad():
        expected = network(digits).argmax(1).numpy()
    share = float(np.mean(np.array(actual) == expected))
    print(f"{share:.1%} of {SERVED} answers are those of PyTorch.")
    return 0 if share >= LEAST_SHARE else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

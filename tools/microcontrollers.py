"""Instructions and flash of int8 networks on emulated Cortex-M boards.

``python -m tools.microcontrollers [--levels LEVEL ...]`` builds networks of the sizes of two
benchmarks of MLPerf Tiny, with random weights, and needs ``make cross-setup``.  An inference is the
difference between a program with two of them and one with a single one.  Each program compares its
output with the interpreter's.  Instructions are not time.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx

import quantglow as qg
from quantglow.instr.program import Compute
from quantglow.ops import Conv
from quantglow.runtime.bundles import emitted
from quantglow.runtime.compiled import CompiledModel
from tests.cross.cortex_m.boards import BOARDS, executed, program, run_tool
from tools.pinned_graphs import with_integer_outputs
from tools.small_networks import Builder, samples

SAMPLES = 4
Channels = tuple[int, int, int]
"""Channels of a layer's input and output, and the stride of its windows."""


def keyword_spotting() -> onnx.ModelProto:
    """DS-CNN: windows of 10 x 4, four separable layers of 64 channels."""
    net = Builder((1, 1, 49, 10), 1)
    weights, bias = net.normal(64, 1, 10, 4, deviation=0.2), net.normal(64, deviation=0.2)
    x = net.op("Conv", "x", weights, bias, pads=[4, 1, 5, 1], strides=[2, 2])
    x = separable(net, net.op("Relu", x), [(64, 64, 1)] * 4)
    return net.model(net.linear(net.pooled(x), 64, 12))


def visual_wake_words() -> onnx.ModelProto:
    """MobileNetV1 with a quarter of the channels, 96 x 96 pixels."""
    net = Builder((1, 3, 96, 96), 2)
    layers = [(8, 16, 1), (16, 32, 2), (32, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2)]
    layers += [(128, 128, 1)] * 5 + [(128, 256, 2), (256, 256, 1)]
    x = net.op("Relu", net.conv("x", 3, 8, strides=[2, 2]))
    return net.model(net.linear(net.pooled(separable(net, x, layers)), 256, 2))


def separable(net: Builder, x: str, layers: list[Channels]) -> str:
    """Depthwise convolutions of 3 x 3, each followed by one of 1 x 1."""
    for inputs, outputs, stride in layers:
        x = net.op("Relu", net.conv(x, inputs, inputs, group=inputs, strides=[stride] * 2))
        x = net.op("Relu", net.conv(x, inputs, outputs, 1))
    return x


NETWORKS: dict[str, Callable[[], onnx.ModelProto]] = {
    "keyword_spotting": keyword_spotting,
    "visual_wake_words": visual_wake_words,
}


def quantized(name: str) -> CompiledModel:
    """A network whose outputs are integers."""
    model = NETWORKS[name]()
    data = samples(model, SAMPLES)
    graph = qg.import_model(model)
    profile = qg.profile(graph, data, progress=False)
    config = qg.QuantizationConfig(quantize_output=True)
    made = qg.compile(with_integer_outputs(qg.quantize(graph, profile, config, data=data)))
    assert isinstance(made, CompiledModel)
    return made


def products(model: CompiledModel, level: str) -> int:
    """Multiply-accumulates of all convolutions and products."""
    steps = [row.step for row in emitted(model.graph, level).rows]
    convs = [s.op for s in steps if isinstance(s, Compute) and isinstance(s.op, Conv)]
    return sum(op.type.size * int(np.prod(op.w.type.shape[:3])) for op in convs)


def show(name: str, model: CompiledModel, level: str, folder: Path) -> None:
    """Print the figures of a network on a board."""
    (sample,) = samples(NETWORKS[name](), 1, seed=1)[0].values()
    (expected,) = qg.interpret(model.graph, {"x": sample})
    counts = []
    for runs in (1, 2):
        path = program(model, level, sample, expected, folder, runs)
        counts.append(executed(path, level))
    total, work = counts[1] - counts[0], products(model, level)
    code, weights = (section_nbytes(folder / "net.o", kind) for kind in (".text", ".rodata"))
    figures = f"{work:,} | {total:,} | {total / work:.2f} | {code:,} | {weights:,}"
    print(f"| {name} | `{level}` | {figures} |", flush=True)


def section_nbytes(path: Path, beginning: str) -> int:
    """Bytes of the sections of an object whose names begin so."""
    lines = [line.split() for line in run_tool("arm-none-eabi-size", "-A", path).splitlines()]
    return sum(int(line[1]) for line in lines if line and line[0].startswith(beginning))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--levels", nargs="+", choices=BOARDS, default=list(BOARDS))
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    chosen = parser.parse_args()
    print("| network | level | products | instructions | for each product | code | weights |")
    print("|---|---|---|---|---|---|---|")
    for name in chosen.networks:
        model = quantized(name)
        for level in chosen.levels:
            with tempfile.TemporaryDirectory() as folder:
                show(name, model, level, Path(folder))


if __name__ == "__main__":
    main()

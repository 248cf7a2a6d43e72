"""Inner loops of AArch64's convolutions: multiply-accumulates in a cycle, as LLVM models cores.

``python -m tools.inner_loops`` needs ``llvm-mca-19``, which ``make cross-setup`` installs.  A
model ignores caches and memory, so it orders tiles; it is no measurement of a processor.
"""

from __future__ import annotations

import argparse
import math
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from quantglow.codegen.llvm.compiler import assembly
from quantglow.codegen.llvm.isa.target import Target
from quantglow.codegen.llvm.kernels import emit
from quantglow.codegen.llvm.targets import level_target
from quantglow.ir.ops import Conv
from quantglow.ir.program.program import Compute
from quantglow.ir.types import DType
from quantglow.transforms.lowering import lower
from quantglow.transforms.program.generate import generate
from tests.generators.quantized_graphs.convolutions import Case, integers

ANALYZER = "llvm-mca-19"
ROUNDS = 200

MACS = {"sdot": 16, "usdot": 16, "smmla": 32, "smull": 8, "smull2": 8, "smlal": 8, "smlal2": 8}
"""Multiply-accumulates of instructions that kernels of bytes have."""
DOTS_A_CYCLE = {"neoverse-n1": 2, "cortex-a76": 2, "neoverse-v1": 4, "apple-m1": 3}
"""Dot products that LLVM's model of a core starts in a cycle."""
PEAKS = {
    "dotprod": {core: 16 * dots for core, dots in DOTS_A_CYCLE.items()},
    "i8mm": {"neoverse-v1": 32 * DOTS_A_CYCLE["neoverse-v1"]},
}
"""Multiply-accumulates in a cycle at most, by level and core."""

LABEL = re.compile(r"^(\.LBB\d+_\d+):")
BRANCH = re.compile(r"^\t(?:b\.\w+|cbn?z\t\w+,|b)\s+(\.LBB\d+_\d+)")
CYCLES = re.compile(r"Total Cycles:\s+(\d+)")


@dataclass(frozen=True)
class Layer:
    """A convolution of ``size`` x ``size`` pixels."""

    size: int
    channels: int
    outputs: int
    kernel: int = 1
    stride: int = 1

    def __str__(self) -> str:
        kernel, step = f"{self.kernel}x{self.kernel}", f" / {self.stride}" * (self.stride > 1)
        return f"{kernel}{step} {self.channels}-{self.outputs} at {self.size}"


DENSE = (
    Layer(56, 64, 128),
    Layer(14, 256, 96),
    Layer(28, 64, 64, 3),
    Layer(7, 320, 1280),
    Layer(64, 3, 64, 7, 2),
)
"""Convolutions whose inner loops are long: of ResNet, MobileNetV2 and PP-OCR."""


def kernel_text(layer: Layer, target: Target) -> str:
    """Assembly of a layer's kernel."""
    side, pad = (layer.size,) * 2, (layer.kernel // 2,) * 4
    case = Case(
        *(1, *side, 1, layer.channels, layer.outputs, (layer.kernel,) * 2, (layer.stride,) * 2),
        *((1, 1), pad, False, False, (3, -5), (DType.I8,) * 3, (-math.inf, math.inf), 1),
    )
    graph = lower(integers(case)[0], unsigned=target.isa.unsigned_activations)
    steps = generate(graph, slack_nbytes=target.isa.slack_nbytes).instructions
    (conv,) = (s for s in steps if isinstance(s, Compute) and isinstance(s.op, Conv))
    return assembly(target, emit(conv, target).ir)


def macs_of(lines: Sequence[str]) -> int:
    """Multiply-accumulates of a piece of assembly."""
    return sum(MACS.get(line.split()[0], 0) for line in lines if line.startswith("\t"))


def inner_loop(text: str) -> list[str]:
    """The loop of one block that multiplies most."""
    lines, labels, actual = text.splitlines(), dict[str, int](), list[str]()
    for number, line in enumerate(lines):
        if label := LABEL.match(line):
            labels[label[1]] = number
        branch = BRANCH.match(line)
        if branch is None or branch[1] not in labels:
            continue
        body = lines[labels[branch[1]] + 1 : number + 1]
        if not any(map(LABEL.match, body)) and macs_of(body) > macs_of(actual):
            actual = body
    return actual


def macs_per_cycle(loop: Sequence[str], core: str) -> float:
    """Multiply-accumulates in a cycle of a loop on LLVM's model of a core."""
    code = "\n".join(line for line in loop if line.startswith("\t"))
    code = re.sub(r"\tb\.\w+\t\S+", "\tnop", code)
    command = [ANALYZER, "-mtriple=aarch64", f"-mcpu={core}", "-mattr=+i8mm,+dotprod"]
    done = subprocess.run(
        [*command, f"-iterations={ROUNDS}"], input=code, capture_output=True, text=True, check=True
    )
    cycles = CYCLES.search(done.stdout)
    assert cycles is not None
    return ROUNDS * macs_of(loop) / int(cycles[1])


def shares(level: str) -> Iterator[tuple[Layer, str, float, float]]:
    """Layer, core, multiply-accumulates in a cycle, and their share of the core's maximum."""
    for layer in DENSE:
        loop = inner_loop(kernel_text(layer, level_target(level)))
        for core, peak in PEAKS[level].items():
            rate = macs_per_cycle(loop, core)
            yield layer, core, rate, rate / peak


def is_installed() -> bool:
    """Whether LLVM's analyzer of machine code is there."""
    return shutil.which(ANALYZER) is not None


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.inner_loops")
    parser.add_argument("--levels", nargs="*", choices=PEAKS, default=list(PEAKS))
    for level in parser.parse_args().levels:
        for layer, core, rate, share in shares(level):
            print(f"{level:8} {layer!s:24} {core:12} {rate:6.1f} MAC/cycle {share:5.0%}")


if __name__ == "__main__":
    main()

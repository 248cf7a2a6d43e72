"""Instructions and flash of int8 networks on emulated Cortex-M boards.

``python -m tools.microcontrollers [--levels LEVEL ...] [--networks NAME ...]`` needs ``make
cross-setup``.  The networks are those of MLPerf Tiny, if ``tools.downloads.convert_mlperf_tiny``
has made them, or, by default, two of the same sizes with random weights.  An inference is the
difference between a program with two of them and one with a single one.  Each program compares its
output with the interpreter's.  Instructions are not time.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import quantglow as qg
from quantglow.export.bundle.exporter import emit
from quantglow.ir.ops.work import count_macs
from quantglow.ir.program.program import Compute, Instruction, Repeat
from quantglow.runtime.compiled import CompiledModel
from quantglow.support.arrays import Array
from tests.cross.cortex_m.boards import BOARDS, executed, program, run_tool
from tools.microcontroller_networks import NETWORKS, quantized

DEFAULT = ("random_keyword_spotting", "random_visual_wake_words")


def products(model: CompiledModel, level: str) -> int:
    """Multiply-accumulates of all convolutions and products of matrices."""
    program = emit(model.graph, level)
    return sum(products_of(row.step) for row in program.rows[: program.count])


def products_of(step: Instruction) -> int:
    """Multiply-accumulates of an instruction, all trips of a loop included."""
    if isinstance(step, Repeat):
        return int(step.trips) * sum(map(products_of, step.body))
    return int(count_macs(step.op)) if isinstance(step, Compute) else 0


def show(
    name: str, model: CompiledModel, feeds: dict[str, Array], level: str, folder: Path
) -> None:
    """Print the figures of a network on a board."""
    (expected,) = qg.interpret(model.graph, feeds)
    (sample,) = feeds.values()
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
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(DEFAULT))
    chosen = parser.parse_args()
    print("| network | level | products | instructions | for each product | code | weights |")
    print("|---|---|---|---|---|---|---|")
    for name in chosen.networks:
        network = NETWORKS[name]()
        model, feeds = quantized(network), network.samples[0]
        for level in chosen.levels:
            with tempfile.TemporaryDirectory() as folder:
                show(name, model, feeds, level, Path(folder))


if __name__ == "__main__":
    main()

"""Instructions that emulated AArch64 processors execute for an inference, against onnxruntime.

::

    python -m tools.integer_hashes write FOLDER ppocr_cls mobilenet_v2 resnet50
    python -m tools.instruction_counts FOLDER --levels dotprod i8mm

needs ``make cross-setup``.  Both run the same int8 network on one thread: quantglow's program, and
onnxruntime's aarch64 wheel the QDQ model that quantglow exports.  A process of onnxruntime tells
the counter where an inference begins and ends, so that its start does not count; Python's part of
the call, some 50,000 instructions, does.  ``tools.kernel_instructions`` has those of each kernel.
Instructions are not time.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
from pathlib import Path

import onnxruntime as ort

import quantglow as qg
from tools.cross_setup import PROCESSORS, counter, interpreter
from tools.integer_hashes import feeds_of
from tools.kernel_instructions import kernels_at

WARMING, RUNS = 1, 2
"""Inferences of a process of onnxruntime before those that count, and these."""
EXECUTED = re.compile(r"executed (\d+)\n")


def export(path: Path) -> None:
    """A QDQ model beside a saved network."""
    if not path.with_suffix(".onnx").exists():
        qg.load(path).export_onnx(path.with_suffix(".onnx"))


def infer(path: Path) -> None:
    """Run a network by onnxruntime; called on the emulated processor, whose counter prints at
    ``getppid``."""
    feeds = feeds_of(path.parent, path.stem)[0]
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(path.with_suffix(".onnx"), options)
    for _ in range(WARMING):
        session.run(None, feeds)
    os.getppid()
    for _ in range(RUNS):
        session.run(None, feeds)
    os.getppid()


def executed_by_onnxruntime(path: Path, level: str) -> float:
    """Instructions of an inference."""
    ours = {
        "QEMU_PLUGIN": f"file={counter()}",
        "QEMU_LOG": "plugin",
        "PYTHONPATH": str(Path(__file__).parents[1]),
    }
    done = subprocess.run(
        [str(interpreter(level)), "-m", "tools.instruction_counts", str(path), "--infer"],
        env={**os.environ, **ours},
        capture_output=True,
        text=True,
        check=True,
    )
    begin, end = map(int, EXECUTED.findall(done.stderr + done.stdout)[:2])
    return (end - begin) / RUNS


def executed(path: Path, level: str) -> tuple[int, float]:
    """Instructions of an inference of a saved network: quantglow's and onnxruntime's."""
    export(path)
    ours = sum(kernel.instructions for kernel in kernels_at(level, path.parent, path.stem))
    return ours, executed_by_onnxruntime(path, level)


def show(path: Path, level: str) -> None:
    """Print the instructions of an inference of both engines."""
    ours, other = executed(path, level)
    print(f"{path.stem:20} {level:8} {ours:14,.0f} {other:14,.0f} {ours / other:6.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.instruction_counts")
    parser.add_argument("folder", type=Path, help="of `python -m tools.integer_hashes write`")
    parser.add_argument("--networks", nargs="*", help="by default all of the folder")
    parser.add_argument("--levels", nargs="*", choices=PROCESSORS, default=list(PROCESSORS))
    parser.add_argument("--infer", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.infer:
        infer(options.folder)
        return
    actual = sorted(options.folder.glob("*.qgm"))
    for path in (p for p in actual if not options.networks or p.stem in options.networks):
        for level in options.levels:
            show(path, level)


if __name__ == "__main__":
    main()

"""Instructions that emulated AArch64 processors execute for an inference, against onnxruntime.

::

    python -m tools.integer_hashes write FOLDER mnist ppocr_cls
    python -m tools.instruction_counts FOLDER --levels dotprod i8mm

needs ``make cross-setup``.  Both run the same int8 network on one thread, onnxruntime the QDQ model
that quantglow exports.  An inference is the difference between a process with many of them and one
with a single one, so that neither start nor compilation counts.  Instructions are not time.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import tempfile
from pathlib import Path

import onnxruntime as ort

import quantglow as qg
from tools.cross_setup import PROCESSORS, counter, interpreter
from tools.integer_hashes import feeds_of

ENGINES = ("quantglow", "onnxruntime")
RUNS = 201
"""Inferences of a process: starting onnxruntime varies by many millions of instructions."""
EXECUTED = re.compile(r"executed (\d+)")


def export(folder: Path) -> None:
    """A QDQ model beside each saved network."""
    for path in sorted(folder.glob("*.qgm")):
        if not path.with_suffix(".onnx").exists():
            qg.load(path).export_onnx(path.with_suffix(".onnx"))


def infer(engine: str, path: Path, level: str, runs: int) -> None:
    """Run a network; called on the emulated processor."""
    feeds = feeds_of(path.parent, path.stem)[0]
    if engine == "quantglow":
        model = qg.load(path, target=level, num_threads=1)
        for _ in range(runs):
            model.run(None, feeds)
        return
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(path.with_suffix(".onnx"), options)
    for _ in range(runs):
        session.run(None, feeds)


def executed(engine: str, path: Path, level: str, runs: int, cache: str) -> int:
    """Instructions of a process that runs a network so many times."""
    own = {
        "QEMU_PLUGIN": f"file={counter()}",
        "QEMU_LOG": "plugin",
        "PYTHONPATH": str(Path(__file__).parents[1]),
        "PYTHONHASHSEED": "0",
        "QUANTGLOW_CACHE_DIR": cache,
    }
    command = ["-m", "tools.instruction_counts", str(path), "--infer", engine, str(runs)]
    done = subprocess.run(
        [str(interpreter(level)), *command, "--levels", level],
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        check=True,
    )
    found = EXECUTED.search(done.stderr + done.stdout)
    assert found is not None, done.stderr
    return int(found[1])


def show(path: Path, level: str) -> None:
    """Print the instructions of an inference of both engines."""
    counts = []
    for engine in ENGINES:
        with tempfile.TemporaryDirectory() as cache:
            executed(engine, path, level, 1, cache)  # fills the cache of kernels
            few, many = (executed(engine, path, level, runs, cache) for runs in (1, RUNS))
        counts.append((many - few) / (RUNS - 1))
    own, other = counts
    print(f"{path.stem:14} {level:8} {own:14,.0f} {other:14,.0f} {own / other:6.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.instruction_counts")
    parser.add_argument("folder", type=Path, help="of `python -m tools.integer_hashes write`")
    parser.add_argument("--levels", nargs="*", choices=PROCESSORS, default=list(PROCESSORS))
    parser.add_argument("--infer", nargs=2, metavar=("ENGINE", "RUNS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.infer:
        engine, runs = options.infer
        infer(engine, options.folder, options.levels[0], int(runs))
        return
    export(options.folder)
    for path in sorted(options.folder.glob("*.qgm")):
        for level in options.levels:
            show(path, level)


if __name__ == "__main__":
    main()

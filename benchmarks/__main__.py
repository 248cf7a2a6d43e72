"""Latency, memory and accuracy of quantglow beside other runtimes and quantizers; see README.md."""

from __future__ import annotations

import sys

from benchmarks.support import commands

FOLDERS = {
    "latency": (
        "latency",
        "batches",
        "compile",
        "first_calls",
        "memory",
        "arenas",
        "layers",
        "levels",
        "cores",
        "peak",
        "ratios",
        "shapes",
        "bindings",
        "weight_groups",
        "loops",
        "late_sizes",
        "decode",
        "throughput",
        "trace",
        "resize",
        "scaling",
    ),
    "providers": ("ep",),
    "search": ("search",),
    "accuracy": (
        "accuracy",
        "calibration",
        "unseen",
        "ranking",
        "detector",
        "voice",
        "ocr_pipeline",
        "text_loss",
    ),
}
COMMANDS = {
    name: f"benchmarks.{folder}.{name}" for folder, names in FOLDERS.items() for name in names
}

if __name__ == "__main__":
    sys.exit(commands.run("python -m benchmarks", __doc__, COMMANDS, sys.argv[1:]))

"""Graphs of the fuzzer through the kernels of AArch64, in plain LLVM IR, on any machine.

``python -m tests.fuzz.arm --seeds 0:500`` draws the graphs of ``python -m tests.fuzz graphs``, and
takes the three levels in turn, with one and two threads.
"""

from __future__ import annotations

import argparse
import sys

from tests.fuzz import compare
from tests.fuzz.compare import Setting
from tests.generators.onnx_models import models
from tests.matrix.as_arm import LEVELS


def setting(seed: int) -> Setting:
    return Setting(LEVELS[seed % len(LEVELS)], 1 + seed // len(LEVELS) % 2)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.arm")
    parser.add_argument("--seeds", default="0:500", help="first and last, as 0:500")
    first, last = map(int, parser.parse_args().seeds.split(":"))
    differences = 0
    for seed in range(first, last):
        found = compare.check(models.drawn(seed), setting(seed))
        if found is not None and found.kind != compare.REFUSED:
            differences += 1
            print(f"seed {seed}, {setting(seed)}: {found.kind}: {found.detail}", flush=True)
        if seed % 100 == 99:
            print(f"{seed + 1 - first} graphs, {differences} differences", flush=True)
    print(f"{last - first} graphs, {differences} differences")
    return min(differences, 1)


if __name__ == "__main__":
    sys.exit(main())

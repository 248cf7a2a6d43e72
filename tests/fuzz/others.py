"""Graphs of the fuzzer through the kernels of other processors, in plain LLVM IR, on any machine.

``python -m tests.fuzz.others arm --seeds 0:500`` draws the graphs of ``python -m tests.fuzz
graphs``, and takes the levels of a family in turn, with one and two threads.
"""

from __future__ import annotations

import argparse
import sys

from tests.fuzz import compare
from tests.fuzz.compare import Setting
from tests.generators.onnx_models import models
from tests.matrix.as_other import levels_of, pretend
from tests.matrix.plain_ir.translation import FAMILIES


def setting(seed: int, levels: tuple[str, ...]) -> Setting:
    return Setting(levels[seed % len(levels)], 1 + seed // len(levels) % 2)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.others")
    parser.add_argument("family", choices=FAMILIES)
    parser.add_argument("--seeds", default="0:500", help="first and last, as 0:500")
    options = parser.parse_args()
    first, last = map(int, options.seeds.split(":"))
    pretend(options.family)
    levels, differences = levels_of(options.family), 0
    for seed in range(first, last):
        chosen = setting(seed, levels)
        checked = compare.check(models.drawn(seed), chosen)
        if checked is not None and checked.kind != compare.REFUSED:
            differences += 1
            print(f"seed {seed}, {chosen}: {checked.kind}: {checked.detail}", flush=True)
        if seed % 100 == 99:
            print(f"{seed + 1 - first} graphs, {differences} differences", flush=True)
    print(f"{last - first} graphs, {differences} differences")
    return min(differences, 1)


if __name__ == "__main__":
    sys.exit(main())

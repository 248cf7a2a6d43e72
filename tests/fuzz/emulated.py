"""Graphs of the fuzzer as programs of other processors, which run in an emulator.

``python -m tests.fuzz.emulated --seeds 0:500 --places neon dotprod i8mm`` draws the graphs of
``python -m tests.fuzz graphs``, quantizes them, and compares their int8 programs with the
interpreter, bit for bit; the places in turn.  Unlike ``others.py`` it executes the processor's own
instructions; it needs ``make cross-setup``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from quantglow import interpreter
from quantglow.ir.graph.signature import entering
from quantglow.support.errors import BackendError, CalibrationError
from tests.fuzz import compare
from tests.fuzz.integers import first_difference
from tests.generators.onnx_models import models
from tests.generators.onnx_models.models import Case
from tools.other_processors import PLACES, is_installed, level_of, program_of

LEFT_OUT = "left out"


def program_difference(case: Case, place: str) -> str:
    """How the integers of a place differ from the interpreter's, empty if they do not; or
    ``LEFT_OUT`` for graphs that no program can have: without numbers, with operators of
    onnxruntime, or without inputs."""
    try:
        graph = compare.with_exact_outputs(compare.quantized(case))
        if not graph.inputs:
            return LEFT_OUT
        with tempfile.TemporaryDirectory() as folder:
            program = program_of(graph, level_of(place), Path(folder))
            feeds = [*case.samples, compare.far(case.samples[0])]
            inputs = [entering(graph.signature.inputs, each) for each in feeds]
            actual, _ = program.run(
                place, [[each[x.name] for x in graph.inputs] for each in inputs]
            )
    except (BackendError, CalibrationError):
        return LEFT_OUT
    pairs = zip(inputs, actual, strict=True)
    names = [name for name, _ in graph.outputs]
    each = (first_difference(names, interpreter.interpret(graph, f), y) for f, y in pairs)
    return next(filter(None, each), "")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.emulated")
    parser.add_argument("--seeds", default="0:500", help="first and last, as 0:500")
    parser.add_argument("--places", nargs="*", choices=PLACES, default=list(PLACES))
    options = parser.parse_args()
    if missing := [place for place in options.places if not is_installed(place)]:
        parser.error(f"no emulator of {', '.join(missing)}: `make cross-setup` installs it")
    first, last = map(int, options.seeds.split(":"))
    actual = dict.fromkeys(range(first, last), "")
    for seed in actual:
        place = options.places[seed % len(options.places)]
        actual[seed] = program_difference(models.drawn(seed), place)
        if actual[seed] not in ("", LEFT_OUT):
            print(f"seed {seed}, {place}: {actual[seed]}", flush=True)
        if seed % 50 == 49:
            print(f"seed {seed} done", flush=True)
    left_out = sum(each == LEFT_OUT for each in actual.values())
    differences = sum(each not in ("", LEFT_OUT) for each in actual.values())
    print(f"{len(actual) - left_out} graphs, {left_out} left out, {differences} differences")
    return min(differences, 1)


if __name__ == "__main__":
    sys.exit(main())

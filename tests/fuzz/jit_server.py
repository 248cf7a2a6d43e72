"""The emulated half of ``jit.py``: compiles saved graphs, runs them, and compares the outputs.

Each line of the standard input is a task; each line that begins with a brace is its answer.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import quantglow as qg
from quantglow.runtime.saved import saving
from tests.fuzz.integers import first_difference
from tests.support.harsh import harsh


def difference(graph: Path, arrays: Path, inputs: list[str], level: str, threads: int) -> str:
    """How outputs of the compiled graph differ from those in ``arrays``, empty if they do not."""
    saved = saving.load(graph).graph
    names = [name for name, _ in saved.outputs]
    with np.load(arrays) as content, harsh():
        compiled = qg.compile(saved, level, threads)
        for run in range(int(content["runs"])):
            feeds = {name: content[f"{run} in {i}"] for i, name in enumerate(inputs)}
            expected = [content[f"{run} out {i}"] for i in range(len(names))]
            if actual := first_difference(names, expected, compiled.run(None, feeds)):
                return f"run {run}, {actual}"
    return ""


def answer(task: dict[str, Any], level: str) -> str:
    """The difference of a task, or the error that it raised."""
    try:
        paths = Path(task["graph"]), Path(task["arrays"])
        return difference(*paths, task["inputs"], level, task["threads"])
    except Exception as error:  # noqa: BLE001 - whatever a valid graph raises is the finding
        return f"raises {type(error).__name__}: {str(error)[:300]}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.jit_server")
    parser.add_argument("level")
    parser.add_argument("--seconds", type=float, required=True, help="the limit of one task")
    options = parser.parse_args()
    for line in sys.stdin:
        faulthandler.dump_traceback_later(options.seconds, exit=True)
        data = answer(json.loads(line), options.level)
        faulthandler.cancel_dump_traceback_later()
        print("\n" + json.dumps({"difference": data}), flush=True)


if __name__ == "__main__":
    main()

"""ONNX's own operator tests (``onnx.backend.test``) through quantglow and through onnxruntime.

Strict: every output has the expected type and shape, and its values to the tolerance of the case.
Cases run in a worker process; one that brings it down counts as a crash, and a new one goes on.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

from quantglow import backend
from quantglow.runtime.delegated import DelegatedModel, PartlyCompiledModel

PASSED = ("compiled", "partly", "whole")
"""Who computed a passed case: quantglow, it and onnxruntime, onnxruntime alone."""

TIMEOUT_SECONDS = 120.0
"""For one case; a worker that takes longer hangs."""


@dataclass(frozen=True)
class Outcome:
    """``how`` is one of ``PASSED``, or failed, or crashed; ``detail`` says why."""

    case: str
    how: str
    detail: str = ""


def cases() -> list[Any]:
    """All node tests; making them overflows here and there on purpose."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(load_model_tests(kind="node"))


def by_quantglow(model: onnx.ModelProto) -> tuple[Callable[[list[Any]], Any], Callable[[], str]]:
    """What runs the model, and who computed it, to be asked after a run."""
    prepared = backend.prepare(model, num_threads=1)
    return prepared.run, lambda: computed_by(prepared)


def computed_by(prepared: backend.PreparedModel) -> str:
    compiled = prepared.compiled
    if isinstance(compiled, PartlyCompiledModel):
        return "partly"
    if isinstance(compiled, DelegatedModel):
        return "whole"
    if not compiled.build.delegated:
        return "compiled"
    return "partly" if compiled.build.programs else "whole"


def by_onnxruntime(model: onnx.ModelProto) -> tuple[Callable[[list[Any]], Any], Callable[[], str]]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    names = [i.name for i in session.get_inputs()]
    return lambda arrays: session.run(None, dict(zip(names, arrays, strict=False))), lambda: "whole"


RUNTIMES = {"quantglow": by_quantglow, "onnxruntime": by_onnxruntime}


def outcome(case: Any, runtime: str) -> Outcome:
    """Run one case."""
    try:
        run, who = RUNTIMES[runtime](case.model)
        for inputs, expected in case.data_sets:
            found = list(run(list(map(as_fed, inputs))))
            wanted = list(map(as_fed, expected))
            Runner.assert_similar_outputs(wanted, found, rtol=case.rtol, atol=case.atol)
        return Outcome(case.name, who())
    except Exception as error:  # noqa: BLE001 - whatever goes wrong fails the case
        lines = f"{type(error).__name__}: {error}".strip().splitlines()
        return Outcome(case.name, "failed", " ".join(lines)[:300])


def as_fed(value: Any) -> Any:
    """Tensors as arrays; some cases hold them as messages or as NumPy's scalars."""
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, np.generic) else value


def work(runtime: str, first: int) -> None:
    """Print the outcome of every case from number ``first`` on, a line of JSON each."""
    warnings.simplefilter("ignore")
    for case in cases()[first:]:
        print(json.dumps(asdict(outcome(case, runtime))), flush=True)


def isolated(runtime: str) -> Iterator[Outcome]:
    """The outcomes of all cases, in worker processes that may crash or hang."""
    names = [case.name for case in cases()]
    done = 0
    while done < len(names):
        for found in worker_lines(runtime, done):
            yield Outcome(**json.loads(found))
            done += 1
        if done < len(names):
            yield Outcome(names[done], "crashed")
            done += 1


def worker_lines(runtime: str, first: int) -> Iterator[str]:
    """What a worker prints until it ends."""
    command = [sys.executable, "-m", "benchmarks.conformance", runtime, str(first)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as worker:
        while line := line_within(worker, TIMEOUT_SECONDS):
            yield line


def line_within(worker: subprocess.Popen[str], seconds: float) -> str:
    """The next line of a worker; it is killed when it takes longer."""
    timer = threading.Timer(seconds, worker.kill)
    timer.start()
    try:
        assert worker.stdout
        return worker.stdout.readline()
    finally:
        timer.cancel()


def summary(outcomes: Iterable[Outcome]) -> dict[str, int]:
    """Cases by how they went, and how many passed."""
    counts = Counter(found.how for found in outcomes)
    passed = sum(counts[how] for how in PASSED)
    return {"cases": counts.total(), "passed": passed, **counts}


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--verbose", action="store_true", help="also how each case went")


def run(options: argparse.Namespace) -> int:
    """Run everything through both runtimes; print figures and what only onnxruntime passes.

    The exit code is 1 if that is anything, or if fewer pass or are compiled than the floors say.
    """
    outcomes = {}
    for runtime in RUNTIMES:
        start = time.perf_counter()
        outcomes[runtime] = list(isolated(runtime))
        figures = ", ".join(f"{n} {how}" for how, n in summary(outcomes[runtime]).items())
        print(f"{runtime}: {figures} ({time.perf_counter() - start:.0f} s)")
    for found in outcomes["quantglow"] if options.verbose else ():
        print(f"  {found.case}: {found.how} {found.detail}")
    behind = only_passed_by(outcomes["onnxruntime"], outcomes["quantglow"])
    for found in behind:
        print(f"only onnxruntime passes {found.case}: {found.how} {found.detail}")
    passed, compiled = passed_share(outcomes["quantglow"]), compiled_share(outcomes["quantglow"])
    print(f"passed: {passed:.1%} of all cases, at least {PASSED_FLOOR:.0%}")
    print(f"compiled without onnxruntime: {compiled:.1%}, at least {COMPILED_FLOOR:.0%}")
    return int(bool(behind) or passed < PASSED_FLOOR or compiled < COMPILED_FLOOR)


PASSED_FLOOR = 0.84
COMPILED_FLOOR = 0.62


def passed_share(outcomes: Sequence[Outcome]) -> float:
    """Cases that pass, whoever computes them."""
    return sum(found.how in PASSED for found in outcomes) / len(outcomes)


def compiled_share(outcomes: Sequence[Outcome]) -> float:
    """Cases that pass without onnxruntime."""
    return sum(found.how == "compiled" for found in outcomes) / len(outcomes)


def only_passed_by(theirs: Sequence[Outcome], ours: Sequence[Outcome]) -> list[Outcome]:
    """Our outcomes of the cases that only the other runtime passes."""
    pairs = zip(theirs, ours, strict=True)
    return [own for other, own in pairs if other.how in PASSED and own.how not in PASSED]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runtime", choices=RUNTIMES)
    parser.add_argument("first", type=int)
    options = parser.parse_args()
    work(options.runtime, options.first)


if __name__ == "__main__":
    main()

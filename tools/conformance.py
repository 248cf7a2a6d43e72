"""ONNX's own operator tests (``onnx.backend.test``) through quantglow and through onnxruntime.

Strict: every output has the expected type and shape, and its values to the tolerance of the case.
Each case runs in a process of its own; a crash or a hang is the failure of that case alone.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

from quantglow import backend
from quantglow.runtime.hybrid.fallback_model import FallbackModel
from quantglow.runtime.native import executable

PASSED = ("compiled", "partly", "whole")
"""Passed cases, by what computed them: quantglow, quantglow and onnxruntime, onnxruntime."""

TIMEOUT_SECONDS = 120.0
"""Maximum time of a case, in seconds; a longer one counts as a hang."""

FORK = multiprocessing.get_context("fork")
"""Child processes inherit the cases, whose making takes seconds."""


@dataclass(frozen=True)
class Outcome:
    """Result of a case: ``how`` is one of ``PASSED``, "failed" or "crashed"."""

    case: str
    how: str
    detail: str = ""


def cases() -> list[Any]:
    """All node tests; some of them overflow on purpose while they are made."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(load_model_tests(kind="node"))


Prepared = tuple[Callable[[list[Any]], Any], Callable[[], str]]
"""A function that runs a model, and one that names, after a run, what computed it."""


def by_quantglow(model: onnx.ModelProto, num_threads: int) -> Prepared:
    prepared = backend.prepare(model, num_threads=num_threads)
    return prepared.run, lambda: computed_by(prepared)


def computed_by(prepared: backend.PreparedModel) -> str:
    compiled = prepared.compiled
    if isinstance(compiled, FallbackModel):
        return "whole"
    if not compiled.build.fallback:
        return "compiled"
    return "partly" if compiled.build.programs else "whole"


def by_onnxruntime(model: onnx.ModelProto, num_threads: int) -> Prepared:
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, num_threads
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    names = [i.name for i in session.get_inputs()]
    return lambda arrays: session.run(None, dict(zip(names, arrays, strict=False))), lambda: "whole"


RUNTIMES = {"quantglow": by_quantglow, "onnxruntime": by_onnxruntime}


def outcome(case: Any, runtime: str, num_threads: int = 1) -> Outcome:
    """Run one case."""
    try:
        run, who = RUNTIMES[runtime](case.model, num_threads)
        for inputs, expected in case.data_sets:
            actual = list(run(list(map(as_fed, inputs))))
            reference = list(map(as_fed, expected))
            Runner.assert_similar_outputs(reference, actual, rtol=case.rtol, atol=case.atol)
        return Outcome(case.name, who())
    except Exception as error:  # noqa: BLE001 - any error fails the case
        lines = f"{type(error).__name__}: {error}".strip().splitlines()
        return Outcome(case.name, "failed", " ".join(lines)[:300])


def as_fed(value: Any) -> Any:
    """The array of a value; some cases hold protobuf messages or NumPy scalars."""
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, np.generic) else value


def isolated(
    case: Any, runtime: str, num_threads: int, seconds: float = TIMEOUT_SECONDS
) -> Outcome:
    """Run one case in a process of its own, which may crash or hang."""
    receiver, sender = FORK.Pipe(duplex=False)
    process = FORK.Process(target=report_outcome, args=(sender, case, runtime, num_threads))
    process.start()
    sender.close()
    try:
        if not receiver.poll(seconds):
            return Outcome(case.name, "crashed", f"no result within {seconds:g} s")
        actual: Outcome = receiver.recv()
        return actual
    except EOFError:
        process.join()
        return Outcome(case.name, "crashed", f"exit code {process.exitcode}")
    finally:
        process.kill()
        process.join()


def report_outcome(sender: Connection, case: Any, runtime: str, num_threads: int) -> None:
    """Run one case and send its outcome; even the smallest programs use all threads."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    warnings.simplefilter("ignore")
    executable.SERIAL_WORK = executable.SERIAL_PROGRAM = 0.0
    sender.send(outcome(case, runtime, num_threads))


def summary(outcomes: Iterable[Outcome]) -> dict[str, int]:
    """Number of cases by outcome, and of those that passed."""
    counts = Counter(value.how for value in outcomes)
    passed = sum(counts[how] for how in PASSED)
    return {"cases": counts.total(), "passed": passed, **counts}


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--verbose", action="store_true", help="print the outcome of each case")
    command.add_argument(
        "--num-threads",
        type=int,
        nargs="+",
        default=[1],
        metavar="N",
        help="run all cases once with each number of threads (default: 1)",
    )


def run(options: argparse.Namespace) -> int:
    """Run all cases through both runtimes; print figures and cases that only onnxruntime passes.

    The exit code is 1 if there is such a case, or if fewer cases pass or are compiled than the
    floors demand, with any number of threads.
    """
    tests = cases()
    theirs = outcomes(tests, "onnxruntime", 1)
    checked = [
        meets_floors(theirs, outcomes(tests, "quantglow", count), options.verbose)
        for count in options.num_threads
    ]
    return int(not all(checked))


def outcomes(tests: Sequence[Any], runtime: str, num_threads: int) -> list[Outcome]:
    """Run all cases and print the number of each outcome."""
    start = time.perf_counter()
    actual = [isolated(case, runtime, num_threads) for case in tests]
    figures = ", ".join(f"{n} {how}" for how, n in summary(actual).items())
    threads = "1 thread" if num_threads == 1 else f"{num_threads} threads"
    print(f"{runtime}, {threads}: {figures} ({time.perf_counter() - start:.0f} s)", flush=True)
    return actual


def meets_floors(theirs: Sequence[Outcome], ours: Sequence[Outcome], verbose: bool) -> bool:
    """Whether enough cases pass, and all that onnxruntime passes; print the others."""
    behind = only_passed_by(theirs, ours)
    for value in ours if verbose else [o for o in ours if o.how == "crashed"]:
        print(f"  {value.case}: {value.how} {value.detail}")
    for value in behind:
        print(f"only onnxruntime passes {value.case}: {value.how} {value.detail}")
    passed, compiled = passed_share(ours), compiled_share(ours)
    print(f"passed: {passed:.1%} of all cases, at least {PASSED_FLOOR:.1%}")
    print(
        f"compiled without onnxruntime: {compiled:.1%}, at least {COMPILED_FLOOR:.1%}", flush=True
    )
    return not behind and passed >= PASSED_FLOOR and compiled >= COMPILED_FLOOR


PASSED_FLOOR = 1600 / 1884
"""Minimum share of cases that pass: 1,600 of the cases of onnx 1.23.2."""
COMPILED_FLOOR = 0.62
"""Minimum share of cases that pass without onnxruntime."""


def passed_share(outcomes: Sequence[Outcome]) -> float:
    """Share of cases that pass, compiled or not."""
    return sum(value.how in PASSED for value in outcomes) / len(outcomes)


def compiled_share(outcomes: Sequence[Outcome]) -> float:
    """Share of cases that pass without onnxruntime."""
    return sum(value.how == "compiled" for value in outcomes) / len(outcomes)


def only_passed_by(theirs: Sequence[Outcome], ours: Sequence[Outcome]) -> list[Outcome]:
    """Our outcomes of the cases that only the other runtime passes."""
    pairs = zip(theirs, ours, strict=True)
    return [item for other, item in pairs if other.how in PASSED and item.how not in PASSED]

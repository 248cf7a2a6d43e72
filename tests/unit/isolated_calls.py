"""Functions that tests let a child process call."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import numpy as np

from quantglow.ort import session as apart
from quantglow.support.arrays import Array


def echoed(arrays: list[Array], **facts: Any) -> list[Array]:
    print(facts)
    return arrays


def process_id(arrays: list[Array]) -> list[Array]:
    return [np.array([os.getpid(), os.getppid()])]


def crash(arrays: list[Array], **facts: Any) -> list[Array]:
    print("before the end", flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)
    return arrays


def hang(arrays: list[Array], **facts: Any) -> list[Array]:
    time.sleep(600)
    return arrays


def hang_in_silence(arrays: list[Array], **facts: Any) -> list[Array]:
    """Hang like foreign code that neither returns nor lets other threads of Python run."""
    kept = {signal.SIGALRM, signal.SIGIO}  # signals that end the child
    signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals) - kept)
    while True:
        sum(range(10**8))


def exhaust_memory(arrays: list[Array], **facts: Any) -> list[Array]:
    held = []
    while True:
        held.append(np.ones(1 << 20))


def fail(arrays: list[Array], **facts: Any) -> list[Array]:
    raise KeyError("no such thing")


def leave(arrays: list[Array], **facts: Any) -> list[Array]:
    sys.exit(0)


def shout(arrays: list[Array], **facts: Any) -> list[Array]:
    """Garbage on both streams, more than a pipe holds, and bytes that are no text."""
    for stream in (1, 2):
        os.write(stream, b"\xff\x00{" * 100_000)
    return arrays


def objects(arrays: list[Array], **facts: Any) -> list[Array]:
    return [np.array([{}, None], object)]


def nested(arrays: list[Array], **facts: Any) -> list[Array]:
    from quantglow.support.processes.isolation import call_isolated

    return call_isolated("tests.unit.isolated_calls:echoed", arrays, seconds=60)


def crash_while_optimizing(arrays: list[Array], *, optimize: bool, **facts: Any) -> list[Array]:
    """onnxruntime, where its graph optimizer crashes."""
    if optimize:
        crash(arrays)
    return apart.outputs(arrays, optimize=optimize, **facts)

"""One runtime in a process of its own, driven over pipes with one JSON object a line.

::

    {"prepare": {"runtime", "network", "threads", "batch", "samples"}}
                                  ->  {"seconds": s, "compile": s}
    {"time": {"warmup", "runs"}}  ->  {"seconds": [s, ...]}

An error ends the process with its traceback on stderr.  The end of input ends it without a message.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from typing import IO, Any

from benchmarks.networks import registry
from benchmarks.networks.network import Feeds
from benchmarks.support import peer_runtimes, quantglow_runtime
from benchmarks.support.processes import ROOT, last_line, module_command
from benchmarks.support.runtime import Maker, Runtime

MAKERS: dict[str, Maker] = {
    "quantglow float": quantglow_runtime.quantglow_float,
    "quantglow int8": quantglow_runtime.quantglow_int8,
    "onnxruntime float": peer_runtimes.onnxruntime_float,
    "onnxruntime int8": peer_runtimes.onnxruntime_int8,
    "openvino float": peer_runtimes.openvino_float,
    "openvino int8": peer_runtimes.openvino_int8,
}
DISTINCT_FEEDS, EVALUATION_SEED = 4, 1


class Server:
    """The worker's side of the pipe; ``prepare`` comes first."""

    runtime: Runtime
    feeds: list[Feeds]

    def prepare(
        self, runtime: str, network: str, threads: int, batch: int, samples: int
    ) -> dict[str, Any]:
        """Make the runtime ready; the network's own file is built before the clock starts."""
        chosen = registry.network(network)
        chosen.path(batch)
        self.feeds = chosen.feeds(DISTINCT_FEEDS, EVALUATION_SEED, batch)
        start = time.perf_counter()
        self.runtime = MAKERS[runtime](chosen, threads, batch, samples)
        seconds = time.perf_counter() - start
        return {"seconds": seconds, "compile": self.runtime.compile_seconds}

    def time(self, warmup: int, runs: int) -> dict[str, Any]:
        """Wall time of each run, on different inputs in turn."""
        for feeds in islice(cycle(self.feeds), warmup):
            self.runtime.run(feeds)
        seconds = []
        for feeds in islice(cycle(self.feeds), runs):
            start = time.perf_counter()
            self.runtime.run(feeds)
            seconds.append(time.perf_counter() - start)
        return {"seconds": seconds}

    def serve(self) -> None:
        """Answer commands until the input ends."""
        replies = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # keeps the output of libraries from mixing with the replies
        actions: dict[str, Callable[..., dict[str, Any]]]
        actions = {"prepare": self.prepare, "time": self.time}
        for line in sys.stdin:
            ((action, arguments),) = json.loads(line).items()
            print(json.dumps(actions[action](**arguments)), file=replies, flush=True)


class WorkerFailedError(RuntimeError):
    """The worker's process ended; the message is its last line on stderr."""


@dataclass
class Worker:
    """The parent's side of a process made by `started`."""

    process: subprocess.Popen[str]
    errors: IO[str]
    prepare_seconds: float = 0.0
    compile_seconds: float = 0.0

    def ask(self, action: str, **arguments: Any) -> dict[str, Any]:
        """Send one command and wait for its reply."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            print(json.dumps({action: arguments}), file=self.process.stdin, flush=True)
            reply = self.process.stdout.readline()
        except BrokenPipeError:
            reply = ""
        if not reply:
            raise WorkerFailedError(self.last_words())
        answer: dict[str, Any] = json.loads(reply)
        return answer

    def last_words(self) -> str:
        """The last line on stderr, after the process ended."""
        code = self.process.wait()
        self.errors.seek(0)
        return last_line(self.errors.read(), code)


@contextmanager
def started(**prepare: Any) -> Iterator[Worker]:
    """A worker that has prepared its runtime.  Raises ``WorkerFailedError`` if that fails."""
    command = module_command("latency.worker")
    pipe = subprocess.PIPE
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=errors, text=True, cwd=ROOT
        ) as process,
    ):
        worker = Worker(process, errors)
        ready = worker.ask("prepare", **prepare)
        worker.prepare_seconds, worker.compile_seconds = ready["seconds"], ready["compile"]
        yield worker


if __name__ == "__main__":
    Server().serve()

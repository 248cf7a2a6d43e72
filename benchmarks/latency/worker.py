"""One runtime in a process of its own, driven over pipes with one JSON object a line.

::

    {"prepare": {"runtime", "network", "threads", "batch", "samples"}}
                                  ->  {"seconds": s, "compile": s}
    {"time": {"warmup", "runs"}}  ->  {"seconds": [s, ...]}

An error ends the process with its traceback on stderr.  The end of input ends it without a message.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import IO, Any

from benchmarks.networks import registry
from benchmarks.networks.network import Feeds
from benchmarks.support import peer_runtimes, quantglow_runtime
from benchmarks.support.processes import ROOT, last_line, module_command
from benchmarks.support.runtime import Maker, Runtime
from benchmarks.support.serving import serve

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
        serve({"prepare": self.prepare, "time": self.time})


class WorkerFailedError(RuntimeError):
    """The worker's process ended; the message is its last line on stderr."""


@dataclass
class Worker:
    """The parent's side of a process made by `started`."""

    process: subprocess.Popen[str]
    errors: IO[str]
    ready: dict[str, Any] = field(default_factory=dict)

    @property
    def prepare_seconds(self) -> float:
        """Seconds from the model's file to a runtime."""
        return float(self.ready["seconds"])

    @property
    def compile_seconds(self) -> float:
        """The part of these that compiling took."""
        return float(self.ready["compile"])

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
def started(
    command: Sequence[str] = (), environment: Mapping[str, str] | None = None, **prepare: Any
) -> Iterator[Worker]:
    """A worker that has prepared its runtime; ``command``: of another child that answers the same
    actions.  Raises ``WorkerFailedError`` if that fails."""
    pipe = subprocess.PIPE
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            command or module_command("latency.worker"),
            stdin=pipe,
            stdout=pipe,
            stderr=errors,
            text=True,
            cwd=ROOT,
            env=environment,
        ) as process,
    ):
        worker = Worker(process, errors)
        worker.ready = worker.ask("prepare", **prepare)
        yield worker


if __name__ == "__main__":
    Server().serve()

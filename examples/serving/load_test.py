"""Load the server on this machine and check every answer: ``python load_test.py FOLDER``.

For each runtime: requests by a few clients in turn (latency and throughput), requests at twice the
rate that the server can serve, and, for quantglow, a model that is replaced meanwhile.  Ends by
itself; exit code 1 if an answer is wrong or missing.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import math
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import aiohttp
import numpy as np
from prepare import CLASSES, INPUT, MODEL, prepare
from runtimes import digest_of

import quantglow as qg
from quantglow.cli.demo import ocr_direction

OK, BAD_REQUEST, BUSY = 200, 400, 503
CLIENTS, IMAGES = 8, 32
NEXT = "next.qgm"
TOLERANCE = 0.05
"""Difference of probabilities from quantglow's int8; a mixed-up answer differs by far more."""

AFTERWARDS = 1.0
"""Time for which clients go on after a model was replaced, in seconds."""

Answers = dict[str, np.ndarray]
"""Expected answers by the digest of the model."""


@dataclass
class Outcome:
    """Statuses, seconds of the answers, and how many were wrong."""

    statuses: Counter[int] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    models: Counter[str] = field(default_factory=Counter)
    wrong: int = 0
    duration: float = 0.0

    @property
    def is_good(self) -> bool:
        """Whether each request was answered rightly or refused."""
        return not self.wrong and self.statuses.keys() <= {OK, BUSY}

    def line(self, name: str) -> str:
        """A row of the table."""
        p50, p99 = np.percentile(self.seconds, [50, 99]) * 1e3 if self.seconds else (0.0, 0.0)
        answered, refused = self.statuses[OK], self.statuses[BUSY]
        others = sum(self.statuses.values()) - answered - refused
        rate = answered / self.duration
        cells = [name, f"{rate:.0f}", f"{p50:.1f}", f"{p99:.1f}"]
        cells += map(str, [answered, refused, others, self.wrong])
        return f"| {' | '.join(cells)} |"


@dataclass
class Load:
    """Requests to a server: one for each of some images, and what they must give."""

    port: int
    bodies: list[bytes]
    answers: Answers

    async def one(self, session: aiohttp.ClientSession, index: int, outcome: Outcome) -> None:
        """Send one request and check its answer."""
        start = time.perf_counter()
        url = f"http://127.0.0.1:{self.port}/v2/models/{MODEL}/infer"
        headers = {"Content-Type": "application/json"}
        try:
            async with session.post(url, data=self.bodies[index], headers=headers) as reply:
                outcome.statuses[reply.status] += 1
                if reply.status == OK:
                    outcome.seconds.append(time.perf_counter() - start)
                    self.check(await reply.json(), index, outcome)
        except aiohttp.ClientError:
            outcome.statuses[0] += 1

    def check(self, reply: dict, index: int, outcome: Outcome) -> None:
        """Count a wrong answer."""
        model = reply["parameters"]["model"]
        outcome.models[model] += 1
        found = np.asarray(reply["outputs"][0]["data"])
        wanted = self.answers.get(model)
        if wanted is None or np.abs(found - wanted[index]).max() > TOLERANCE:
            outcome.wrong += 1

    async def in_turn(self, seconds: float, meanwhile: Callable[[], None] | None = None) -> Outcome:
        """Each client sends a request when it has the answer to the one before; after
        ``meanwhile``, for ``AFTERWARDS`` more seconds at least."""
        outcome, start = Outcome(), time.perf_counter()
        end = start + seconds if meanwhile is None else math.inf

        async def client(first: int, session: aiohttp.ClientSession) -> None:
            index = first
            while time.perf_counter() < end:
                await self.one(session, index % len(self.bodies), outcome)
                index += 1

        async def change(action: Callable[[], None]) -> None:
            nonlocal end
            try:
                await asyncio.to_thread(action)
            finally:
                end = max(start + seconds, time.perf_counter() + AFTERWARDS)

        async with aiohttp.ClientSession() as session:
            work = [client(4 * number, session) for number in range(CLIENTS)]
            work += [change(meanwhile)] if meanwhile is not None else []
            await asyncio.gather(*work)
        outcome.duration = time.perf_counter() - start
        return outcome

    async def at_rate(self, rate: float, seconds: float) -> Outcome:
        """Requests come at a rate, whether the server answers or not."""
        outcome, start = Outcome(), time.perf_counter()
        tasks = []
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            for number in range(int(rate * seconds)):
                if (delay := start + number / rate - time.perf_counter()) > 0:
                    await asyncio.sleep(delay)
                tasks.append(asyncio.create_task(self.one(session, number % IMAGES, outcome)))
            await asyncio.gather(*tasks)
        outcome.duration = time.perf_counter() - start
        return outcome


def body(image: np.ndarray) -> bytes:
    """A request for one image, its bytes in base64."""
    data = base64.b64encode(image.tobytes()).decode()
    parameters = {"content_type": "base64"}
    given = {"name": INPUT, "shape": list(image.shape), "datatype": "BYTES"}
    return json.dumps({"inputs": [{**given, "parameters": parameters, "data": [data]}]}).encode()


def check_protocol(port: int) -> None:
    """Raise ``AssertionError`` unless the metadata lists inputs and outputs, and another type than
    the declared one is refused."""
    url = f"http://127.0.0.1:{port}/v2/models/{MODEL}"
    with urllib.request.urlopen(url) as answer:
        metadata = json.load(answer)
    (tensor,) = metadata["inputs"]
    assert (tensor["name"], tensor["datatype"]) == (INPUT, "FP32"), metadata
    assert metadata["outputs"], metadata
    shape = [1, *(size if size > 0 else 48 for size in tensor["shape"][1:])]
    given = {"name": INPUT, "shape": shape, "data": [1] * int(np.prod(shape))}
    for datatype, status in (("FP32", OK), ("INT64", BAD_REQUEST)):
        content = json.dumps({"inputs": [{**given, "datatype": datatype}]}).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{url}/infer", content, headers)
        assert status_of(request) == status, datatype


def status_of(request: urllib.request.Request) -> int:
    """The status of an answer."""
    try:
        with urllib.request.urlopen(request) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def free_port() -> int:
    """The first of three ports in a row that nobody uses."""
    while True:
        with ExitStack() as opened, suppress(OSError, OverflowError):
            own = [opened.enter_context(socket.socket()) for _ in range(3)]
            own[0].bind(("127.0.0.1", 0))
            first = int(own[0].getsockname()[1])
            for offset, other in enumerate(own[1:], 1):
                other.bind(("127.0.0.1", first + offset))
            return first


def start(folder: Path, port: int) -> subprocess.Popen:
    """A server that is ready.  Raises ``RuntimeError`` if it ends or takes more than a minute."""
    command = [str(Path(sys.executable).with_name("mlserver")), "start", str(folder)]
    log = (folder / "server.log").open("w")
    server = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": ""})
    for _ in range(600):
        if server.poll() is not None:
            break
        with socket.socket() as own:
            own.settimeout(1)
            if own.connect_ex(("127.0.0.1", port)) == 0 and is_ready(port):
                return server
        time.sleep(0.1)
    server.kill()
    raise RuntimeError((folder / "server.log").read_text()[-2000:])


def is_ready(port: int) -> bool:
    """Whether the health endpoint says so."""
    try:
        url = f"http://127.0.0.1:{port}/v2/models/{MODEL}/ready"
        return bool(urllib.request.urlopen(url, timeout=2).status == OK)
    except (urllib.error.URLError, OSError):
        return False


def replace(folder: Path, port: int) -> None:
    """Replace the model by the one in ``next.qgm`` while the server runs."""
    time.sleep(0.5)
    settings = json.loads((folder / "model-settings.json").read_text())
    settings["parameters"]["uri"] = f"./{NEXT}"
    (folder / "model-settings.json").write_text(json.dumps(settings))
    url = f"http://127.0.0.1:{port}/v2/repository/models/{MODEL}/load"
    urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=60).read()


def measured(folder: Path, runtime: str, seconds: float) -> bool:
    """Load one runtime; whether all answers were right."""
    example, port = ocr_direction(), free_port()
    prepare(folder, [runtime], port)
    own = folder / runtime / MODEL
    images = [example.calibration[i : i + 1] for i in range(IMAGES)]
    answers = answers_of(own, images)
    load, rows = Load(port, list(map(body, images)), answers), {}
    server = start(folder / runtime, port)
    try:
        check_protocol(port)
        asyncio.run(load.in_turn(1))
        rows[f"{CLIENTS} clients"] = calm = asyncio.run(load.in_turn(seconds))
        rate = 2 * calm.statuses[OK] / calm.duration
        rows[f"{rate:.0f} calls/s"] = asyncio.run(load.at_rate(rate, seconds))
        if (own / NEXT).exists():
            swap = partial(replace, own, port)
            rows["model replaced"] = asyncio.run(load.in_turn(seconds, swap))
    finally:
        server.terminate()
        server.wait(30)
    for name, outcome in rows.items():
        print(outcome.line(f"{runtime}, {name}"), flush=True)
    answered = {model for outcome in rows.values() for model in outcome.models}
    if missing := answers.keys() - answered:
        print(f"{runtime}: no answer came from the model {', '.join(missing)}", file=sys.stderr)
    return not missing and all(outcome.is_good for outcome in rows.values())


def answers_of(folder: Path, images: list[np.ndarray]) -> Answers:
    """The answers that each model in a folder must give; beside a ``.qgm`` a float model is
    written, which will replace it."""
    example = ocr_direction()
    found = {}
    if (folder / "model.qgm").exists():
        qg.compile(example.model).save(folder / NEXT)
        paths = [folder / "model.qgm", folder / NEXT]
        found = {digest_of(path): expected(qg.load(path), images) for path in paths}
    else:
        path = folder / "model.onnx"
        found[digest_of(path)] = expected(qg.compile(path), images)
    return found


def expected(model: qg.CompiledModel, images: list[np.ndarray]) -> np.ndarray:
    """The answers to all images."""
    return np.concatenate([model.run(None, {INPUT: image})[0] for image in images])


def main() -> int:
    """Print a Markdown table."""
    command = argparse.ArgumentParser(description=__doc__)
    command.add_argument("folder", type=Path)
    command.add_argument("--runtimes", nargs="+", default=list(CLASSES), choices=list(CLASSES))
    command.add_argument("--seconds", type=float, default=5.0)
    options = command.parse_args()
    titles = ["server", "answers/s", "p50 ms", "p99 ms", "answered", "refused", "lost", "wrong"]
    print(f"| {' | '.join(titles)} |\n{'| --- ' * len(titles)}|", flush=True)
    good = [measured(options.folder, name, options.seconds) for name in options.runtimes]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())

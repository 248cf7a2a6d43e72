"""Calls of Python functions in a child process, for foreign code that may crash, hang or exhaust
memory: the child ends, this process gets a typed error.

::

    with started("package.module:function", arrays, {"seed": 3}, seconds=60) as call:
        ...                      # the child already works
        results = call.result()  # raises IsolationError

The function takes a list of arrays and keyword arguments that JSON holds, and returns a list of
arrays.  It is imported by name in a fresh interpreter that sees nothing of the caller's program, so
scripts without a ``__main__`` guard, notebooks, ``python -c`` and threads may call it.  Data goes
through unnamed temporary files, never through pickle, and no file is left, whatever ends first.
Windows hands no descriptors to children: there, the files lie in a temporary folder.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from quantglow.support.errors import QuantglowError
from quantglow.support.processes.threads import run_undisturbed

Array = NDArray[Any]

INSIDE = "QUANTGLOW_ISOLATED"
"""Environment variable of a child.  A child starts no child: where an application that embeds
Python names itself as the interpreter, it does not start itself again and again."""

MARGIN = 5.0
"""Seconds after its time limit at which a child ends itself, whatever its parent does."""

SAID = 500
"""Characters of the child's last words on stderr that a message quotes."""

HAS_DESCRIPTORS = hasattr(os, "O_ASYNC")
"""Whether children may be given descriptors, and signals when their parent ends."""

BEGIN = (
    "import sys; sys.path[:] = {path}; "
    "from quantglow.support.processes.isolation import serve; serve{arguments}"
)


TIMED_OUT = -int(getattr(signal, "SIGALRM", 14))
"""Exit code of a child that ended itself."""


class IsolationError(QuantglowError):
    """A call in a child process gave no result."""


class RaisedInChild(IsolationError):
    """The function raised; ``kind`` is the name of the exception's type."""

    def __init__(self, kind: str, message: str) -> None:
        self.kind = kind
        super().__init__(f"{kind}: {message}" if message else kind)


class ChildDied(IsolationError):
    """The process ended without a result: by a signal, or by an exit code."""


class ChildTimeout(IsolationError):
    """The process was ended because it took longer than its time limit."""


@dataclass(frozen=True)
class Channel:
    """Files and a line between this process and a child.

    ``names``: how the child finds the two files and its end of the line; ``options``: how it is
    started; ``line``: this end, which tells when the child has ended; None where nothing does.
    """

    request: IO[bytes]
    response: IO[bytes]
    names: tuple[int | str | None, ...]
    options: Mapping[str, Any]
    line: socket.socket | None = None
    lifeline: socket.socket | None = None

    @staticmethod
    @contextmanager
    def of_descriptors() -> Iterator[Channel]:
        """Unnamed files, and a pair of sockets."""
        with ExitStack() as stack:
            request, response = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(2))
            line, lifeline = map(stack.enter_context, socket.socketpair())
            names = (request.fileno(), response.fileno(), lifeline.fileno())
            # A new session: Ctrl-C in a terminal comes to the caller alone.
            options = {"pass_fds": names, "stdin": subprocess.DEVNULL, "start_new_session": True}
            yield Channel(request, response, names, options, line, lifeline)

    @staticmethod
    @contextmanager
    def of_paths() -> Iterator[Channel]:
        """Files in a folder that goes with the call, and the child's standard input."""
        with tempfile.TemporaryDirectory(prefix="quantglow-") as folder, ExitStack() as stack:
            paths = [Path(folder) / name for name in ("request", "response")]
            request, response = (stack.enter_context(path.open("w+b")) for path in paths)
            names = (*map(str, paths), None)
            yield Channel(request, response, names, {"stdin": subprocess.PIPE})

    def wait(self, process: subprocess.Popen[bytes], seconds: float) -> int:
        """The exit code of the child.  Raises ``TimeoutError``."""
        if self.line is None:
            try:
                return process.wait(seconds)
            except subprocess.TimeoutExpired:
                raise TimeoutError from None
        # Not wait(timeout): Ctrl-C at the wrong moment in it leaves a lock that kill() waits for.
        self.line.settimeout(seconds)
        self.line.recv(1)  # ends when the child does
        return process.wait()


@dataclass(frozen=True)
class IsolatedCall:
    """A call under way in a child process."""

    process: subprocess.Popen[bytes]
    channel: Channel
    said: IO[bytes]
    seconds: float
    end: float

    def result(self) -> list[Array]:
        """The arrays that the function returns.  Raises ``IsolationError``."""
        try:
            code = self.channel.wait(self.process, max(0.001, self.end - time.monotonic()))
        except TimeoutError:
            code = TIMED_OUT
        if code == TIMED_OUT:
            raise ChildTimeout(f"it took longer than {self.seconds:g} s and was ended")
        if code:
            raise ChildDied(f"{_ending(code)}{self._last_words()}")
        self.channel.response.seek(0)
        try:
            facts, arrays = _read_message(self.channel.response)
        except (ValueError, LookupError, EOFError):
            raise ChildDied(f"its process ended without a result{self._last_words()}") from None
        if facts:
            raise RaisedInChild(facts["kind"], facts["message"])
        return arrays

    def _last_words(self) -> str:
        size = self.said.seek(0, os.SEEK_END)
        self.said.seek(max(0, size - SAID))
        words = " ".join(self.said.read().decode("utf-8", "replace").split())
        return f": {words}" if words else ""


@contextmanager
def start(
    place: str,
    arrays: Sequence[Array] = (),
    facts: Mapping[str, Any] | None = None,
    *,
    seconds: float,
    nbytes: int | None = None,
) -> Iterator[IsolatedCall]:
    """Start ``place`` ("package.module:function") in a child, which ends with the block at latest.

    ``seconds`` bounds the time from here, ``nbytes`` the memory the function may add to that of
    the interpreter (Linux; default: what is available now).  Raises ``IsolationError``.
    """
    if os.environ.get(INSIDE) or getattr(sys, "frozen", False):
        raise ChildDied("no child process is started from one, nor from a frozen application")
    with ExitStack() as stack:
        make = Channel.of_descriptors if HAS_DESCRIPTORS else Channel.of_paths
        channel = stack.enter_context(make())
        said = stack.enter_context(tempfile.TemporaryFile())
        limit = _available_nbytes() if nbytes is None else nbytes
        job = {"place": place, "facts": dict(facts or {}), "nbytes": limit}
        _write_message(channel.request, job, arrays)
        channel.request.flush()
        channel.request.seek(0)
        arguments = (*channel.names, seconds + MARGIN)
        begin = BEGIN.format(path=[*map(str, sys.path)], arguments=arguments)
        end = time.monotonic() + seconds
        try:
            process = subprocess.Popen(
                # -P: a file json.py in the current folder is not the module json.
                [sys.executable, "-P", "-c", begin],
                stdout=said,
                stderr=said,
                env={**os.environ, INSIDE: "1"},
                **channel.options,
            )
        except (OSError, TypeError, ValueError) as error:
            raise ChildDied(f"no child process can be started: {error}") from error
        try:
            if channel.lifeline is not None:
                channel.lifeline.close()
            yield IsolatedCall(process, channel, said, seconds, end)
        finally:
            process.kill()
            process.communicate()


def call_isolated(
    place: str,
    arrays: Sequence[Array] = (),
    facts: Mapping[str, Any] | None = None,
    *,
    seconds: float,
    nbytes: int | None = None,
) -> list[Array]:
    """``start`` and its result.  Raises ``IsolationError``."""
    with start(place, arrays, facts, seconds=seconds, nbytes=nbytes) as call:
        return call.result()


def serve(request: int | str, response: int | str, lifeline: int | None, seconds: float) -> None:
    """The child: read a call from one file, write its result to the other, end the process."""
    if lifeline is None:
        _end_with_input()
    else:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        _end_with(lifeline)
    with open(request, "rb") as source:
        message, arrays = _read_message(source)
    with open(response, "wb") as target:
        try:
            _limit_memory(message["nbytes"])
            module, name = message["place"].split(":")
            results = getattr(import_module(module), name)(arrays, **message["facts"])
            _write_message(target, {}, results)
        except Exception as error:  # noqa: BLE001 - the caller raises it
            target.seek(0)
            target.truncate()
            _write_message(target, {"kind": type(error).__name__, "message": str(error)}, [])
    os._exit(0)  # the result is written: nothing is lost if a library would crash while it unloads


def _end_with_input() -> None:
    """End this process when its standard input closes, as it does however the parent ends."""

    def wait() -> None:
        os.read(0, 1)  # not sys.stdin: a thread that reads it keeps the interpreter from ending
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _end_with(lifeline: int) -> None:
    """End this process when the other end of a socket closes, as it does however the parent ends.

    The system sends a signal that Python does not handle: it ends foreign code, too.
    """
    import fcntl  # Windows has no such module

    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(
        lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC | os.O_NONBLOCK
    )
    with suppress(BlockingIOError):  # raised while the other end is open
        os._exit(1 + len(os.read(lifeline, 1)))


def _limit_memory(nbytes: int | None) -> None:
    """Let this process take ``nbytes`` more; a system short of memory ends it before others."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    with suppress(OSError, ValueError, ImportError):
        import resource  # Windows has no such module

        pages = int(Path("/proc/self/statm").read_text().split()[0])
        if nbytes is not None:
            limit = pages * resource.getpagesize() + nbytes
            _, most = resource.getrlimit(resource.RLIMIT_AS)
            capped = limit if most == resource.RLIM_INFINITY else min(limit, most)
            resource.setrlimit(resource.RLIMIT_AS, (capped, most))


def _available_nbytes() -> int | None:
    """Memory that is free or can be freed without swapping; None where the system does not say."""
    with suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def _ending(code: int) -> str:
    """Description of the end of a process, from its exit code."""
    if code > 0:
        return f"its process ended with exit code {code}"
    names = {int(s): s.name for s in signal.Signals}
    short = ", as by a system that is short of memory" if names.get(-code) == "SIGKILL" else ""
    return f"its process was ended by signal {-code} ({names.get(-code, 'unknown')}{short})"


def _write_message(file: IO[bytes], facts: Mapping[str, Any], arrays: Sequence[Array]) -> None:
    """Facts as a line of JSON, then the arrays, texts in a fixed width.  Raises ``ValueError`` for
    arrays of other objects."""
    file.write(json.dumps({"facts": facts, "arrays": len(arrays)}).encode() + b"\n")
    for value in arrays:
        array = np.asarray(value)
        if array.dtype.kind == "O" and all(isinstance(text, str) for text in array.flat):
            array = array.astype(np.str_)
        np.lib.format.write_array(file, array, allow_pickle=False)


def _read_message(file: IO[bytes]) -> tuple[dict[str, Any], list[Array]]:
    """The message that ``_write_message`` wrote.  Raises ``ValueError`` or ``LookupError`` for
    anything else."""
    head = json.loads(file.readline())
    begin, count = file.tell(), range(head["arrays"])

    def arrays() -> list[Array]:
        file.seek(begin)
        return [np.lib.format.read_array(file, allow_pickle=False) for _ in count]

    return head["facts"], run_undisturbed(arrays)

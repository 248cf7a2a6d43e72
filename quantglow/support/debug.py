"""Environment switches for looking inside.

``QUANTGLOW_DEBUG=1``    timings of the stages, rewrites of each pass and memory figures, on stderr
``QUANTGLOW_DEBUG=2``    also the IR after each pass that changed it, and why passes declined
``QUANTGLOW_DEBUG=3``    also the LLVM IR of every kernel, compiled anew: the cache is not asked
``QUANTGLOW_DEBUG=4``    also the assembly
``QUANTGLOW_VERIFY=1``   verify types and names after every pass
``QUANTGLOW_DUMP_DIR``   write ``07-decompose-batch-norm.ir`` for each pass that changed the graph
"""

from __future__ import annotations

import itertools
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from quantglow.support.errors import OptionError
from quantglow.support.timeline import span

KERNELS = 3
"""The level from which on the code of kernels is logged."""

_counter = itertools.count()


def level() -> int:
    """The value of ``QUANTGLOW_DEBUG``, 0 when unset or not a number."""
    value = os.environ.get("QUANTGLOW_DEBUG", "0")
    return int(value) if value.isdecimal() else 0


def shows_kernels() -> bool:
    """Whether the code of kernels is to be seen."""
    return level() >= KERNELS


def shows_stages() -> bool:
    """Whether the IR between stages is to be seen."""
    return level() >= 2 or bool(os.environ.get("QUANTGLOW_DUMP_DIR"))


def verifying() -> bool:
    return os.environ.get("QUANTGLOW_VERIFY", "0") not in ("", "0")


def log(at_level: int, text: str) -> None:
    """Write ``text`` to stderr if the debug level is at least ``at_level``."""
    if level() >= at_level and sys.stderr is not None:
        print(text, file=sys.stderr)


def dump_ir(stage: str, ir: object) -> None:
    """Print or write the IR after ``stage``, as the environment asks.  Raises ``OptionError``."""
    folder = os.environ.get("QUANTGLOW_DUMP_DIR")
    if not shows_stages():
        return
    text = str(ir)
    log(2, f"=== {stage}\n{text}")
    if folder:
        safe = re.sub(r"[^\w.-]+", "-", stage)
        path = Path(folder) / f"{next(_counter):02d}-{safe}.ir"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise OptionError(
                f"QUANTGLOW_DUMP_DIR={folder!r} cannot be written: {error}"
            ) from error


@contextmanager
def time_stage(stage: str, seconds: dict[str, float] | None = None) -> Iterator[None]:
    """Log the time of a stage at debug level 1, and add it to ``seconds[stage]`` if given."""
    start = time.perf_counter()
    with span(stage):
        yield
    spent = time.perf_counter() - start
    log(1, f"{stage}: {spent * 1e3:.1f} ms")
    if seconds is not None:
        seconds[stage] = seconds.get(stage, 0.0) + spent

"""Kernels compiled beside other work."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager

from quantglow.graph.graph import Graph
from quantglow.processes.pools import submitted
from quantglow.runtime.build import Compiler, physical_cores


@contextmanager
def kernels_ahead(compiler: Compiler) -> Iterator[Callable[[Graph], object]]:
    """Function that starts to compile the kernels of a graph, and returns at once.

    Weights are not part of a kernel, so it is called as soon as the operators and their types are
    known.  LLVM then has the second core while the first one rounds weights.  Errors are ignored
    here, because compiling the whole graph raises them again.  An error in the block, or Ctrl-C,
    drops the kernels that are not being compiled yet.
    """
    if physical_cores() < 2:
        yield _nothing
        return
    ended = threading.Event()

    def check() -> None:
        if ended.is_set():
            raise CancelledError

    pool = ThreadPoolExecutor(1, "quantglow-kernels")
    try:
        yield lambda graph: submitted(pool, compiler.load_kernels, graph, check)
        pool.shutdown()
    except BaseException:
        ended.set()
        raise
    finally:
        pool.shutdown()


def _nothing(graph: Graph) -> None:
    """A single core gains nothing."""

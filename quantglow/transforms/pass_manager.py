"""Passes in order, over graphs as over programs, and a record of what each of them did.

The record is kept where ``QUANTGLOW_DEBUG`` asks for it: level 1 logs the rewrites and the time of
each pass, level 2 also the reasons why passes declined to rewrite.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

from quantglow.support import debug
from quantglow.support.errors import QuantglowError

IR = TypeVar("IR")
Rule = TypeVar("Rule", bound=Callable[..., Any])
"""``rule(node, …)`` gives a replacement, or None."""


@dataclass
class PassRecord:
    """Rewrites and seconds by the names of passes, and reasons by pass and name of a value.

    A pass without rules for single nodes counts one rewrite for each run that changes the IR.
    """

    rewrites: Counter[str] = field(default_factory=Counter)
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    reasons: dict[tuple[str, str], str] = field(default_factory=dict)
    running: str = ""

    def watched(self, name: str, rule: Rule) -> Callable[..., Any]:
        """The rule of the pass ``name``, which notes what it does."""

        def watching(node: Any, *arguments: Any) -> Any:
            self.running = name
            start = time.perf_counter()
            replacement = rule(node, *arguments)
            self.seconds[name] += time.perf_counter() - start
            if replacement is not None:
                self.rewrites[name] += 1
                self.reasons.pop((name, node.name), None)
            return replacement

        return watching

    def run(self, name: str, step: Callable[[IR], IR], ir: IR) -> IR:
        """``step(ir)`` for a pass over the whole IR, whose own rules may be noted meanwhile."""
        self.running = name
        rewrites, seconds, start = self.rewrites[name], self.seconds[name], time.perf_counter()
        new = step(ir)
        self.seconds[name] = seconds + time.perf_counter() - start
        self.rewrites[name] += new is not ir and self.rewrites[name] == rewrites
        return new

    def table(self) -> str:
        """One line for each pass that did something, in the order in which they first ran."""
        rows = [
            f"{name:40}{self.rewrites[name]:6d} rewrites {seconds * 1e3:9.1f} ms"
            for name, seconds in self.seconds.items()
            if self.rewrites[name]
        ]
        return "\n".join(rows)

    def reasons_text(self) -> str:
        """One line for each value that a pass declined to rewrite."""
        return "\n".join(f"{p}: {v!r} declined: {why}" for (p, v), why in self.reasons.items())


_record: ContextVar[PassRecord | None] = ContextVar("record", default=None)


def active_record() -> PassRecord | None:
    """The record of the passes that run, if one is kept."""
    return _record.get()


@contextmanager
def recording(record: PassRecord) -> Iterator[None]:
    """Keep a record of all passes that run in the block."""
    token = _record.set(record)
    try:
        yield
    finally:
        _record.reset(token)


@contextmanager
def record() -> Iterator[None]:
    """Log what all passes that run in the block do, if the debug level asks for it."""
    if active_record() is not None or not debug.level():
        yield
        return
    record = PassRecord()
    with recording(record):
        yield
    debug.log(1, record.table())
    debug.log(2, record.reasons_text())


Watcher = Callable[[str, Any, Any], None]
"""Called with the name of a pass, the IR before it, and another one after it."""

_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


@contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Call ``watcher`` after each pass in the block that changes the IR."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def decline(name: str, reason: str) -> None:
    """Note why the pass that runs leaves the value ``name`` as it is."""
    record = active_record()
    if record is not None:
        record.reasons[record.running, name] = reason


def pass_name(step: Callable[[IR], IR]) -> str:
    """``fold-batch-norm``, of a function as of a pass that has a name."""
    name = getattr(step, "name", None) or getattr(step, "__name__", type(step).__name__)
    return str(name).replace("_", "-")


def run_whole(step: Callable[[IR], IR], ir: IR) -> IR:
    """``step(ir)``, noted in the record if one is kept."""
    record = active_record()
    return step(ir) if record is None else record.run(pass_name(step), step, ir)


def run_in_order(
    ir: IR,
    passes: Sequence[Callable[[IR], IR]],
    verify: Callable[[IR], object],
    always: bool = False,
) -> IR:
    """The IR after all passes; a failing pass is named in the error.

    An IR that a pass changed is verified where ``QUANTGLOW_VERIFY`` asks for it, or ``always``.
    """
    check = verify if always or debug.verifying() else None
    with record():
        for step in passes:
            ir = _run_checked(ir, step, check)
    return ir


def _run_checked(ir: IR, step: Callable[[IR], IR], check: Callable[[IR], object] | None) -> IR:
    """The IR after one pass, checked if the pass changed it."""
    name = pass_name(step)
    try:
        new = run_whole(step, ir)
        if new is not ir and check is not None:
            check(new)
    except QuantglowError as error:
        error.add_note(f"in pass {name!r}")
        raise
    if new is not ir:
        debug.dump_ir(name, new)
        if (watcher := _watcher.get()) is not None:
            watcher(name, ir, new)
    return new

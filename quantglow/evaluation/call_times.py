"""Time of every kernel call of a compiled model, beside its limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from quantglow.codegen.llvm.call_profile import CallTime
from quantglow.runtime.native.executable import LlvmExecutable
from quantglow.runtime.native.peak import Peak, measure_peak
from quantglow.runtime.native.sequences import BatchedExecutable
from quantglow.runtime.programs.build import Build
from quantglow.support.arrays import Array
from quantglow.support.display.tables import Table
from quantglow.support.errors import BackendError

FIGURES = ("µs", "% of all", "MMAC", "kB", "GMAC/s", "limit µs", "share")


@dataclass(frozen=True)
class CallReport:
    """Times of kernel calls, in the order of execution, and the peak of the processor.

    The *limit* of a call is the time that the processor needs for its products, or to move its
    bytes from and to the second-level cache, whichever is longer.
    """

    calls: Sequence[CallTime]
    peak: Peak

    def limit(self, call: CallTime) -> float:
        """Seconds."""
        return call.limit_seconds(self.peak.macs(call.is_integer), self.peak.cached_nbytes)

    @property
    def seconds(self) -> float:
        """Seconds of all calls."""
        return sum(call.seconds for call in self.calls)

    @property
    def limit_seconds(self) -> float:
        """Limit of all calls, in seconds."""
        return sum(map(self.limit, self.calls))

    def title(self) -> str:
        """The peaks that the limits are computed from."""
        peak = self.peak
        return (
            f"{peak.threads} thread(s); limit: {peak.integer_macs / 1e9:.0f} int8 and "
            f"{peak.float_macs / 1e9:.0f} float GMAC/s, {peak.cached_nbytes / 1e9:.0f} GB/s"
        )

    def by_call(self) -> Table:
        """A row for each call, and the sum."""
        rows = [
            (call.name, call.op, call.label, *self._figures([call], self.limit(call)))
            for call in self.calls
        ]
        whole = self._figures(self.calls, self.limit_seconds)
        rows.append(("all", "", f"{len(self.calls)} calls", *whole))
        columns = ("value", "op", "kernel", *FIGURES)
        return Table(f"Kernel calls, {self.title()}", columns, rows, frozenset(FIGURES))

    def by_kernel(self) -> Table:
        """A row for each kind of kernel, the one with the largest loss first."""
        groups: dict[tuple[str, str], list[CallTime]] = {}
        for call in self.calls:
            groups.setdefault((call.op, call.label), []).append(call)
        rows = []
        for (op, label), calls in groups.items():
            limit = sum(map(self.limit, calls))
            loss = sum(call.seconds for call in calls) - limit
            figures = self._figures(calls, limit)
            rows.append((loss, (op, label, str(len(calls)), *figures, f"{loss * 1e6:.1f}")))
        rows.sort(key=lambda row: -row[0])
        numbers = ("calls", *FIGURES, "loss µs")
        columns = ("op", "kernel", *numbers)
        return Table("By kernel", columns, [cells for _, cells in rows], frozenset(numbers))

    def _figures(self, calls: Sequence[CallTime], limit: float) -> tuple[str, ...]:
        seconds, macs = sum(c.seconds for c in calls), sum(c.macs for c in calls)
        return (
            f"{seconds * 1e6:.1f}",
            f"{100 * seconds / self.seconds:.1f}" if self.seconds else "",
            f"{macs / 1e6:.2f}" if macs else "",
            f"{sum(c.nbytes for c in calls) / 1e3:.0f}",
            f"{macs / seconds / 1e9:.0f}" if macs and seconds else "",
            f"{limit * 1e6:.1f}",
            f"{100 * limit / seconds:.0f} %" if seconds else "",
        )

    def to_json(self) -> dict[str, Any]:
        """The report as plain data."""
        calls = [{**asdict(call), "limit_seconds": self.limit(call)} for call in self.calls]
        sums = {"seconds": self.seconds, "limit_seconds": self.limit_seconds}
        return {"peak": asdict(self.peak), **sums, "calls": calls}


def profile_calls(build: Build, feeds: Mapping[str, Array], repeats: int = 30) -> CallReport:
    """The median time of every kernel call of a build on ``feeds``, and the processor's peak.

    If a batch runs in pieces, the first piece is timed.
    """
    executable, own = timed_part(build, feeds)
    calls = executable.profile_calls(own, repeats)
    return CallReport(calls, measure_peak(executable.target, build.num_threads))


def timed_calls(build: Build, feeds: Mapping[str, Array]) -> list[CallTime]:
    """The median time of every kernel call of a build."""
    executable, own = timed_part(build, feeds)
    return executable.profile_calls(own)


def timed_part(build: Build, feeds: Mapping[str, Array]) -> tuple[LlvmExecutable, dict[str, Array]]:
    """The compiled program of a build, and the part of ``feeds`` that it takes.

    Raises ``BackendError`` if there is no program.
    """
    executable: object = build.executable
    if isinstance(executable, BatchedExecutable):
        feeds = executable.first_of(feeds)
        executable = executable.piece
    if not isinstance(executable, LlvmExecutable):
        raise BackendError(
            f"the {build.target} backend runs no kernels to time. Remedy: compile with "
            "backend='llvm'."
        )
    return executable, dict(feeds)

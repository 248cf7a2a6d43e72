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
from quantglow.support.errors import BackendError


@dataclass(frozen=True)
class CallSum:
    """Sum of kernel calls; ``limit_seconds`` is their limit, ``all_seconds`` the time of all calls
    of the model.
    """

    name: str
    op: str
    label: str
    calls: Sequence[CallTime]
    limit_seconds: float
    all_seconds: float

    @property
    def seconds(self) -> float:
        """Seconds of the calls."""
        return sum(call.seconds for call in self.calls)

    @property
    def macs(self) -> int:
        """Multiply-accumulates of the calls."""
        return sum(call.macs for call in self.calls)

    @property
    def nbytes(self) -> int:
        """Bytes that the calls read and write."""
        return sum(call.nbytes for call in self.calls)

    @property
    def macs_per_second(self) -> float:
        """Multiply-accumulates a second; 0 where nothing was measured."""
        return self.macs / self.seconds if self.seconds else 0.0

    @property
    def percent(self) -> float | None:
        """Share of the time of all calls, in percent."""
        return 100 * self.seconds / self.all_seconds if self.all_seconds else None

    @property
    def limit_percent(self) -> float | None:
        """The limit in percent of the time."""
        return 100 * self.limit_seconds / self.seconds if self.seconds else None

    @property
    def loss_seconds(self) -> float:
        """Seconds beyond the limit."""
        return self.seconds - self.limit_seconds


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

    def summarize(self, name: str, op: str, label: str, calls: Sequence[CallTime]) -> CallSum:
        """The sum of some of the calls."""
        return CallSum(name, op, label, calls, sum(map(self.limit, calls)), self.seconds)

    @property
    def each(self) -> list[CallSum]:
        """The calls, in the order of execution."""
        return [self.summarize(call.name, call.op, call.label, [call]) for call in self.calls]

    @property
    def whole(self) -> CallSum:
        """The sum of all calls."""
        return self.summarize("all", "", f"{len(self.calls)} calls", self.calls)

    @property
    def by_kernel(self) -> list[CallSum]:
        """The sum for each kind of kernel, the one with the largest loss first."""
        groups: dict[tuple[str, str], list[CallTime]] = {}
        for call in self.calls:
            groups.setdefault((call.op, call.label), []).append(call)
        sums = [self.summarize("", op, label, calls) for (op, label), calls in groups.items()]
        return sorted(sums, key=lambda each: -each.loss_seconds)

    def to_json(self) -> dict[str, Any]:
        """The report as plain data."""
        calls = [{**asdict(call), "limit_seconds": self.limit(call)} for call in self.calls]
        sums = {"seconds": self.seconds, "limit_seconds": self.limit_seconds}
        return {"peak": asdict(self.peak), **sums, "calls": calls}


def profile_calls(build: Build, feeds: Mapping[str, Array], repeats: int = 30) -> CallReport:
    """The median time of every kernel call of a build on ``feeds``, and the processor's peak.

    If a batch runs in pieces, the first piece is timed.
    """
    executable, part_feeds = select_part(build, feeds)
    calls = executable.profile_calls(part_feeds, repeats)
    return CallReport(calls, measure_peak(executable.target, build.num_threads))


def time_calls(build: Build, feeds: Mapping[str, Array]) -> list[CallTime]:
    """The median time of every kernel call of a build."""
    executable, part_feeds = select_part(build, feeds)
    return executable.profile_calls(part_feeds)


def select_part(
    build: Build, feeds: Mapping[str, Array]
) -> tuple[LlvmExecutable, dict[str, Array]]:
    """The compiled program of a build, and the part of ``feeds`` that it takes.

    Raises ``BackendError`` if there is no program.
    """
    executable: object = build.executable
    if isinstance(executable, BatchedExecutable):
        feeds = executable.first_piece(feeds)
        executable = executable.piece
    if not isinstance(executable, LlvmExecutable):
        raise BackendError(
            f"the {build.target} backend runs no kernels to time. Remedy: compile with "
            "backend='llvm'."
        )
    return executable, dict(feeds)

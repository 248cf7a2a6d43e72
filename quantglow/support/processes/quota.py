"""The processor time that the control groups of Linux leave to this process.

A container may run on all processors of its host and still have the time of two: more threads than
that are throttled by the kernel.  Source: the kernel's documentation of control groups, version 1
(``cpu.cfs_quota_us``) and 2 (``cpu.max``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

PROC = Path("/proc/self")


def quota(proc: Path = PROC) -> float:
    """The number of processors whose time this process may use, infinite without a limit."""
    return min((limit for folder in _folders(proc) for limit in _limits(folder)), default=math.inf)


def within_quota(processors: int, proc: Path = PROC) -> int:
    """As many processors, and no more than this process has the time of; at least 1."""
    return max(1, math.ceil(min(processors, quota(proc))))


@dataclass(frozen=True)
class _Mount:
    """A mounted hierarchy: the group that is its root, and where it lies."""

    root: PurePosixPath
    point: Path
    is_second: bool

    def folders(self, group: PurePosixPath) -> Iterator[Path]:
        """The folders of a group and of those around it, as far as they are mounted."""
        inside = group.relative_to(self.root) if group.is_relative_to(self.root) else ""
        folder = self.point / inside
        yield folder
        for parent in folder.parents:
            if not parent.is_relative_to(self.point):
                return
            yield parent


def _folders(proc: Path) -> Iterator[Path]:
    """The folders of the groups that limit the processor time of this process."""
    try:
        groups, mounts = (proc / "cgroup").read_text(), (proc / "mountinfo").read_text()
    except (OSError, UnicodeDecodeError):
        return
    mounted = list(filter(None, map(_mount, mounts.splitlines())))
    for line in groups.splitlines():
        number, _, remainder = line.partition(":")
        controllers, _, group = remainder.partition(":")
        is_second = number == "0" and not controllers
        if not is_second and "cpu" not in controllers.split(","):
            continue
        for mount in mounted:
            if mount.is_second == is_second:
                yield from mount.folders(PurePosixPath(group))


def _mount(line: str) -> _Mount | None:
    """The mount of a line of ``mountinfo`` if it is a hierarchy that may limit processor time."""
    facts, _, system = line.partition(" - ")
    fields, kinds = facts.split(), system.split()
    if len(fields) < 5 or len(kinds) < 3:
        return None
    is_first = kinds[0] == "cgroup" and "cpu" in kinds[-1].split(",")
    if not is_first and kinds[0] != "cgroup2":
        return None
    root, point = (field.replace(r"\040", " ") for field in fields[3:5])
    return _Mount(PurePosixPath(root), Path(point), not is_first)


def _limits(folder: Path) -> Iterator[float]:
    """The limits that the files of a group state."""
    if limit := _ratio(_words(folder / "cpu.max")):
        yield limit
    words = [*_words(folder / "cpu.cfs_quota_us"), *_words(folder / "cpu.cfs_period_us")]
    if limit := _ratio(words):
        yield limit


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except (OSError, UnicodeDecodeError):
        return []


def _ratio(words: list[str]) -> float:
    """Quota over period; 0 where there is no limit."""
    try:
        allowed, period = map(int, words)
        return max(0.0, allowed / period)
    except (ValueError, ZeroDivisionError):
        return 0.0

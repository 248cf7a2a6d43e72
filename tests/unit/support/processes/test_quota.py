"""Threads by default are no more than the control groups of a container leave time for."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from quantglow.support.processes.quota import quota, within_quota

SECOND = "36 31 0:35 {root} {point} rw,nosuid - cgroup2 cgroup2 rw\n"
FIRST = "32 31 0:28 {root} {point} rw,relatime - cgroup cgroup rw,cpu,cpuacct\n"
OTHERS = (
    "24 1 0:22 / /proc rw - proc proc rw\n33 31 0:29 / /mem rw - cgroup cgroup rw,memory\nodd\n"
)


def process(folder: Path, groups: str, mount: str, root: str = "/") -> Path:
    """The facts of a process, whose control groups lie in ``folder / "groups"``."""
    proc = folder / "proc"
    proc.mkdir()
    (proc / "cgroup").write_text(groups)
    point = str(folder / "groups").replace(" ", r"\040")
    (proc / "mountinfo").write_text(OTHERS + mount.format(root=root, point=point))
    return proc


def group(folder: Path, name: str, **files: str) -> None:
    """A control group with some files."""
    path = folder / "groups" / name
    path.mkdir(parents=True, exist_ok=True)
    for file, text in files.items():
        (path / file.replace("__", ".")).write_text(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("max 100000\n", math.inf), ("200000 100000\n", 2), ("50000 100000", 0.5), ("", math.inf)],
)
def test_a_group_of_version_2_has_a_limit(tmp_path: Path, text: str, expected: float) -> None:
    proc = process(tmp_path, "0::/a/b\n", SECOND)
    group(tmp_path, "a/b", cpu__max=text)
    assert quota(proc) == expected


def test_the_groups_around_a_group_count(tmp_path: Path) -> None:
    folder = tmp_path / "with space"
    folder.mkdir()
    proc = process(folder, "0::/pods/one/two\n", SECOND)
    group(folder, "", cpu__max="max 100000")
    group(folder, "pods", cpu__max="150000 100000")
    group(folder, "pods/one/two", cpu__max="300000 100000")
    assert quota(proc) == 1.5
    assert [within_quota(n, proc) for n in (1, 2, 64)] == [1, 2, 2]


@pytest.mark.parametrize(("allowed", "expected"), [("-1", math.inf), ("250000", 2.5)])
def test_a_group_of_version_1_has_a_limit(tmp_path: Path, allowed: str, expected: float) -> None:
    proc = process(tmp_path, "5:memory:/x\n4:cpu,cpuacct:/docker/c1\n0::/\n", FIRST)
    group(tmp_path, "docker/c1", cpu__cfs_quota_us=allowed, cpu__cfs_period_us="100000")
    assert quota(proc) == expected


def test_a_container_that_sees_only_its_own_group_has_its_limit(tmp_path: Path) -> None:
    """Its mount begins at the group whose name on the host the process is in."""
    proc = process(tmp_path, "0::/kubepods/pod7/c1\n", SECOND, root="/kubepods/pod7/c1")
    group(tmp_path, "", cpu__max="100000 100000")
    assert quota(proc) == 1
    others = process(tmp_path / "groups", "0::/../../elsewhere\n", SECOND)
    assert quota(others) == math.inf


@pytest.mark.parametrize("text", ["1e9 x", "0 0", "100000 0", "-5 100000", "\0"])
def test_files_that_say_nothing_limit_nothing(tmp_path: Path, text: str) -> None:
    proc = process(tmp_path, "0::/\nodd\n", SECOND)
    group(tmp_path, "", cpu__max=text)
    assert quota(proc) == math.inf
    assert quota(tmp_path / "none") == math.inf
    assert within_quota(3, proc) == 3

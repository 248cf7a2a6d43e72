"""Hooks of pytest for ``--no-skips``: a test that is skipped for lack of a tool fails.

CI installs every tool (``make cross-setup``); a test that does not find one would never run there.
Reasons that no installation changes are ``ALLOWED``.
"""

from __future__ import annotations

import re
from collections.abc import Generator

import pytest

ALLOWED = (
    "this processor has no ",
    "the rest of the code needs AVX-512 VNNI",
    "this is no x86-64",
    "needs two processors",
    "mprotect as Linux has it",
    "a system call of Linux",
    "the system has no large pages",
    "this processor's objects go to LLVM",
    "only the administrator gives files away",
    " is not in the repository; to get it: ",
    " cannot be downloaded:",
)
"""Texts in reasons of the processor, the system, the network, and large models."""


def is_allowed(reason: str) -> bool:
    """Whether a test may be skipped for this reason although all tools are installed."""
    return any(text in reason for text in ALLOWED)


def refuse(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a report of a skipped test into that of a failed one, unless its reason is allowed."""
    if not report.skipped or hasattr(report, "wasxfail"):
        return
    assert isinstance(report.longrepr, tuple)
    reason = re.sub("^Skipped: ", "", report.longrepr[2])
    if not is_allowed(reason):
        report.outcome = "failed"
        report.longrepr = f"skipped, but --no-skips was given: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """The report of a phase of a test."""
    report = yield
    if item.config.getoption("no_skips"):
        refuse(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The report of collecting a file."""
    report = yield
    if collector.config.getoption("no_skips"):
        refuse(report)
    return report

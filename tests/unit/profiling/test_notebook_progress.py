"""Progress in a notebook, whose IPython is a fake: bars of HTML, updated in place."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from quantglow.support import progress as notebook_progress
from quantglow.support.progress import bar, show


@pytest.fixture
def shows(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The HTML that a notebook got, in order."""
    collected: list[str] = []
    handle = SimpleNamespace(update=collected.append)
    display = ModuleType("IPython.display")
    vars(display).update(HTML=str, display=lambda text, **_: collected.append(text) or handle)
    ipython = ModuleType("IPython")
    vars(ipython).update(get_ipython=lambda: SimpleNamespace(kernel=object()), display=display)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    return collected


def test_a_bar_moves_and_ends_as_a_line(
    shows: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    now = iter([0.0, 0.01, 2.0, 4.0, 6.0])
    monkeypatch.setattr(notebook_progress.time, "monotonic", lambda: next(now))
    assert list(show([1, 2, 3], "<b>Profiling")) == [1, 2, 3]
    assert len(shows) == 4
    assert "value='0' max='3'" in shows[0]
    assert "value='2' max='3'" in shows[2]
    assert "about 2 s left" in shows[2]
    assert shows[3] == "<small>&lt;b&gt;Profiling: 3 in 6 s</small>"
    assert "<b>" not in "".join(shows)
    assert capfd.readouterr() == ("", "")


def test_nothing_is_shown_if_not_wanted(shows: list[str]) -> None:
    assert list(show([1, 2], "Profiling", False)) == [1, 2]
    assert not shows


def test_a_total_may_be_unknown(shows: list[str]) -> None:
    assert list(show(iter([1, 2]), "Profiling")) == [1, 2]
    assert "max=" not in shows[0]
    assert "max=" not in bar("Profiling", 2, None, 1.0)


def test_ipython_without_a_kernel_is_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    ipython = ModuleType("IPython")
    vars(ipython)["get_ipython"] = lambda: SimpleNamespace()
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    assert not notebook_progress.in_notebook()

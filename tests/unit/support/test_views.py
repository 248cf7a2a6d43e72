"""Every view exists, and objects are shown by the one of their class."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from importlib import import_module

import pytest

from quantglow.evaluation.weight_sizes import WeightSizes
from quantglow.support.views import VIEWS, HasDrawing, HasText, show


def named(name: str) -> object:
    module, _, attribute = name.rpartition(".")
    return getattr(import_module(module), attribute)


@pytest.mark.parametrize("name", VIEWS)
def test_every_view_exists(name: str) -> None:
    kind = named(name)
    assert isinstance(kind, type) and issubclass(kind, HasText | HasDrawing)
    assert callable(named(VIEWS[name]))


def test_subclasses_have_the_view_of_their_base() -> None:
    @dataclass(frozen=True)
    class Sizes(WeightSizes):
        pass

    assert str(Sizes(4_000, 1_000)) == show(WeightSizes(4_000, 1_000))


def test_figures_import_no_view_before_they_are_shown() -> None:
    code = (
        "import sys; from quantglow.evaluation.report import Report, MemoryFigures;"
        "report = Report('avx2', 1, MemoryFigures(), {}); repr(report), report.to_json();"
        "print([name for name in sys.modules if name.startswith('quantglow.report.')])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, text=True, capture_output=True)
    assert done.stdout == "[]\n"

"""Settings of every test: the verifier is on, and kernels are compiled once in a run."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import effort  # its profiles must be loaded before tests are defined
from tests.support.skips import pytest_make_collect_report, pytest_runtest_makereport  # noqa: F401

os.environ.setdefault("QUANTGLOW_VERIFY", "1")
# Tests run in a process for each core: more threads would only wait for one another.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# A shell starts background jobs with Ctrl-C ignored; tests of it need Python's handler.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """Make the run's kernel cache, which workers and the processes of tests inherit.

    Kernels are compiled once in a run, not once in each of its many processes.  None is there of an
    earlier run, and none is left in the user's cache.  An entry is named by all that its code
    depends on, and programs that are verified are not kept.
    """
    if "QUANTGLOW_CACHE_DIR" not in os.environ:
        folder = os.environ["QUANTGLOW_CACHE_DIR"] = tempfile.mkdtemp(prefix="quantglow-tests-")
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


@pytest.fixture(autouse=True)
def sizes_are_decided(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Fail where code takes a condition on free sizes for an answer, also if that is caught: then
    a model would only lose its program for all shapes."""
    from quantglow.ir.symbolic import size  # its settings above must be made before

    places: list[str] = []

    def note(condition: str) -> TypeError:
        places.append("".join(traceback.format_stack(limit=4)[:-2]))
        return error(condition)

    error = size.undecided
    monkeypatch.setattr(size, "undecided", note)
    yield
    if places and "undecided" not in request.keywords:
        pytest.fail(f"decide() has to be asked:\n{places[0]}")


@pytest.fixture(scope="module")
def with_opaque_results() -> Iterator[None]:
    """Late results are opaque, see ``tests.support.opaque_results``."""
    from tests.support.opaque_results import (
        opaque_results,  # its settings above must be made before
    )

    with opaque_results():
        yield


QUICK = (
    "golden",
    "unit/interpreter",
    "unit/ir",
    "unit/profiling",
    "unit/quantization/equalize",
    "unit/quantization/rounding",
    "unit/quantization/search",
    "unit/report",
    "unit/tools",
    "unit/transforms",
)
"""Folders of tests that compile few kernels or none.  With the files of ``unit`` itself, which
hold rules of the repository, they are ``pytest -m quick``."""
LONGER = {"slow", "emulated", "frameworks", "browser"}
"""Markers of tests that do not run by default, nor as quick ones."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave files out that have no quick test, where only these are asked for."""
    if config.option.markexpr == "quick" and collection_path.suffix == ".py":
        return None if is_quick(collection_path) else True
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the variants that are slow, and the quick tests."""
    mark_slow_variants(items)
    for item in items:
        if is_quick(item.path) and not any(mark.name in LONGER for mark in item.iter_markers()):
            item.add_marker(pytest.mark.quick)


def mark_slow_variants(items: list[pytest.Item]) -> None:
    """Make the cases of each test with ``slow_variants`` slow, but the first ones; none on emulated
    processors, where a case has few examples."""
    if effort.PROFILE == "emulated":
        return
    fast: Counter[str] = Counter()
    for item in items:
        mark = item.get_closest_marker("slow_variants")
        if mark is None or item.get_closest_marker("slow") is not None:
            continue
        test, (quick,) = item.nodeid.partition("[")[0], mark.args or (1,)
        fast[test] += 1
        if fast[test] > quick:
            item.add_marker(pytest.mark.slow)


def is_quick(file: Path) -> bool:
    """Whether the tests of a file are quick."""
    tests = Path(__file__).parent
    folders = [tests / name for name in QUICK]
    return file.parent == tests / "unit" or any(map(file.is_relative_to, folders))


def pytest_collection_finish() -> None:
    """Leave the tests that were collected out of each search for garbage."""
    gc.collect()
    gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write tests/golden as passes print it now"
    )
    parser.addoption(
        "--no-skips",
        action="store_true",
        help="a test skipped for lack of a tool fails; tests/support/skips.py lists other reasons",
    )

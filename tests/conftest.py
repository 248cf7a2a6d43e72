"""Settings of every test: the verifier is on, and there is no kernel cache on disk."""

from __future__ import annotations

import gc
import os
import signal

import pytest

from tests.support import effort  # noqa: F401  its profiles must be loaded before tests are defined
from tests.support.skips import pytest_make_collect_report, pytest_runtest_makereport  # noqa: F401

os.environ.setdefault("QUANTGLOW_VERIFY", "1")
# Tests run in a process for each core: more threads would only wait for one another.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Tests compile what they check: no kernel of an earlier run, none left in the user's cache.
os.environ.setdefault("QUANTGLOW_CACHE_DIR", "")

# A shell starts background jobs with Ctrl-C ignored; tests of it need Python's handler.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


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

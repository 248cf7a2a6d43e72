"""Keeps warnings, log lines and prints of exporters out of the user's terminal."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from io import StringIO


@contextmanager
def quiet(*packages: str) -> Iterator[None]:
    """Inside, nothing warns or prints, and handlers of loggers of ``packages`` write nothing."""
    with ExitStack() as undo:
        undo.enter_context(redirect_stdout(StringIO()))
        undo.enter_context(redirect_stderr(StringIO()))
        undo.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        for handler in handlers_of(packages):
            handler.addFilter(refuse)
            undo.callback(handler.removeFilter, refuse)
        yield


def refuse(record: logging.LogRecord) -> bool:
    """A filter that no record passes."""
    return False


def handlers_of(packages: tuple[str, ...]) -> set[logging.Handler]:
    """The handlers of the packages' own loggers."""
    known = logging.root.manager.loggerDict
    names = [*packages, *(n for n in known if n.partition(".")[0] in packages)]
    return {handler for name in names for handler in logging.getLogger(name).handlers}

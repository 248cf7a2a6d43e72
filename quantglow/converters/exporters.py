"""Exporters of other packages: silent, and their errors in one line."""

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


def cause_of(error: BaseException) -> str:
    """The innermost cause of an exporter's error, its first line."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0].rstrip('.')}" if lines else type(error).__name__

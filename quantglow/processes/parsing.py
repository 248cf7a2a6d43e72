"""Calls of Python's own parser, which other threads can disturb.

``ast.parse`` of CPython counts the depth of its recursion in one place for all threads.  If a
finalizer lets another thread parse meanwhile, the first one gets a ``SystemError``
(https://github.com/python/cpython/issues/106905).  NumPy reads the heads of arrays in this way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")

ATTEMPTS = 100
"""Maximum number of calls.  Two disturbed ones in a row are rare; a lock would not hold back the
threads of others."""


def undisturbed(call: Callable[[], Result]) -> Result:
    """``call()``, which may parse and can be repeated, in spite of other threads that parse."""
    for _ in range(ATTEMPTS - 1):
        try:
            return call()
        except SystemError:
            continue
    return call()

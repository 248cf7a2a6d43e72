"""Tables of kernel calls, walked by generated code: on one thread, or several times.

A table entry is four 64-bit words: kernel, arguments, work items, chunks.  The code stands in
``scheduler/``, as LLVM IR with comments; names in angle brackets are layouts that Python shares
with it, the instructions of a target, or other files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

FOLDER = Path(__file__).with_name("scheduler")


def read_template(name: str, words: Mapping[str, object] = MappingProxyType({})) -> str:
    """The LLVM IR of ``scheduler/NAME.ll`` without its comments, and with ``words`` in place of
    their names in angle brackets; other names in brackets stay."""
    lines = (FOLDER / f"{name}.ll").read_text("utf-8").splitlines(keepends=True)
    code = "".join(line for line in lines if not line.lstrip().startswith(";"))
    return fill("\n" + code, words)


def fill(text: str, words: Mapping[str, object]) -> str:
    """A text with ``words`` in place of their names in angle brackets."""
    return re.sub(r"<([\w.]+)>", lambda match: str(words.get(match[1], match[0])), text)


CALL_OF_ENTRY = read_template("entry").rstrip("\n")
"""Loads entry ``%i`` of ``%table``: the kernel ``%fn``, its ``%args`` and ``%items``."""

ENTRY_NBYTES = 32

RUN_ALONE = read_template("run_alone", {"entry": CALL_OF_ENTRY})
"""Walks a table on the calling thread."""

INTERNAL_RUN_ALONE = RUN_ALONE.replace("define", "define internal")
"""``run_alone`` for modules that walk tables themselves."""

LOOP_WORDS = 5
"""Words before the moving pointers in the arguments of a loop: trips, the first row of its table,
the rows, the moving pointers, and the address of a condition or 0."""

MOVING_WORDS = 3
"""Words of a moving pointer: its address in the first trip, bytes to the next trip, and where the
kernel reads it."""

LOOP = read_template(
    "loop",
    {"run_alone": INTERNAL_RUN_ALONE, "loop.nbytes": 8 * LOOP_WORDS, "moving.words": MOVING_WORDS},
)
"""A kernel that walks the table of a loop's body once in each trip, on one thread.

It ends after the trip in which another thread sets the trips to 0.
"""

"""Records of hashes: written to a JSON file on one checkout, compared with it on another."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Record = dict[str, Any]
Explain = Callable[[str, Any, Any], str]
"""Name, entry before, entry after -> what differs."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``--write`` and ``--compare``."""
    parser.add_argument("--write", type=Path, metavar="FILE.json")
    parser.add_argument("--compare", type=Path, metavar="FILE.json")


def differences(before: Mapping[str, Any], after: Mapping[str, Any], explain: Explain) -> list[str]:
    """One text for each entry of both that differs."""
    common = (name for name in after if name in before)
    return [explain(n, before[n], after[n]) for n in common if before[n] != after[n]]


def as_it_is(record: Record) -> Record:
    """The record itself."""
    return record


def finish(
    options: argparse.Namespace,
    record: Record,
    explain: Explain,
    older: Callable[[Record], Record] = as_it_is,
) -> None:
    """Write or compare the record, as the options ask; exit code 1 where entries differ.

    Entries that the file lacks (a new target) are named; entries that only the file has are not
    missed, because a run may be of a part.  ``older`` translates what the file holds.
    """
    if options.write:
        options.write.parent.mkdir(parents=True, exist_ok=True)
        options.write.write_text(json.dumps(record, indent=1) + "\n")
    if options.compare:
        before = older(json.loads(options.compare.read_text()))
        sys.exit(compared(before, record, explain))


def compared(before: Record, after: Record, explain: Explain) -> bool:
    """Print how ``after`` differs; whether it does, or nothing could be compared."""
    actual = differences(before, after, explain)
    new = [name for name in after if name not in before]
    total = len(after) - len(new)
    lines = [*actual, *([f"not in the file: {', '.join(new)}"] if new else [])]
    print("\n".join([*lines, f"{total - len(actual)} of {total} entries are equal"]))
    return bool(actual) or not total

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
    """One text for each entry of ``after`` that is not in ``before`` as it is."""
    found = []
    for name, entry in after.items():
        if name not in before:
            found.append(f"{name}: not in the file")
        elif before[name] != entry:
            found.append(explain(name, before[name], entry))
    return found


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

    Entries that only the file has are not missed: a run may be of a part.  ``older`` translates
    what the file holds.
    """
    if options.write:
        options.write.parent.mkdir(parents=True, exist_ok=True)
        options.write.write_text(json.dumps(record, indent=1) + "\n")
    if options.compare:
        before = older(json.loads(options.compare.read_text()))
        if not record:
            sys.exit("nothing was compared")
        found = differences(before, record, explain)
        print("\n".join(found))
        print(
            f"{len(record) - len(found)} of {len(record)} entries equal those of {options.compare}"
        )
        sys.exit(bool(found))

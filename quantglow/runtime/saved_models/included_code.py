"""Machine code in a saved model: what a process needs to run it without compiling.

::

    code.json   versions of what made the code, hashes of its targets, number of threads, schedule,
                names and sizes of entries
    code.bin    entries of the caches (``backends.llvm.jit.cache``), one behind the other

Entries are named by all that they depend on: the graph, the target, the number of threads.
``code_making`` makes them.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from quantglow.backends.llvm.jit.identity import add, code_versions
from quantglow.backends.llvm.targets import LEVELS, resolve, runs_here
from quantglow.errors import BackendError
from quantglow.pages import Content, Data, Parts
from quantglow.runtime.saved_models.archives import CODE, CODE_TEXT

NATIVE = "native"

CODE_MODES = ("ignore", "use", "require")
"""Uses of the code in a file that is loaded."""


@dataclass(frozen=True)
class IncludedCode:
    """Entries of caches by name; ``targets``: hashes of the targets they are for, by name."""

    versions: str
    targets: Mapping[str, str]
    threads: int
    schedule: str
    entries: Mapping[str, Data]

    def members(self) -> dict[str, Content]:
        """The members that store it."""
        sizes = [[name, len(entry)] for name, entry in self.entries.items()]
        text = {
            "versions": self.versions,
            "targets": dict(self.targets),
            "threads": self.threads,
            "schedule": self.schedule,
            "entries": sizes,
        }
        return {CODE_TEXT: json.dumps(text).encode(), CODE: Parts(tuple(self.entries.values()))}

    @staticmethod
    def of(text: bytes, content: bytes) -> IncludedCode:
        """The code from the contents of ``members``.  Raises one of ``DAMAGED_CONTENT``."""
        found = json.loads(text)
        names = [str(name) for name, _ in found["entries"]]
        sizes = [int(nbytes) for _, nbytes in found["entries"]]
        if min(sizes, default=0) < 0 or sum(sizes) != len(content):
            raise ValueError("the sizes of its code are other ones")
        data, ends = memoryview(content), list(itertools.accumulate(sizes))
        parts = (data[end - nbytes : end] for end, nbytes in zip(ends, sizes, strict=True))
        targets = {str(name): str(key) for name, key in found["targets"].items()}
        settings = (str(found["versions"]), targets, int(found["threads"]), str(found["schedule"]))
        return IncludedCode(*settings, dict(zip(names, parts, strict=True)))

    def target_for(self, wanted: str, threads: int, schedule: str) -> str:
        """The name of the target whose code runs here: ``wanted``, or the best one for ``native``.

        Raises ``BackendError`` with the reason why there is none.
        """
        if (self.threads, self.schedule) != (threads, schedule):
            raise BackendError(
                f"it is for num_threads={self.threads} and schedule={self.schedule!r}, not for "
                f"num_threads={threads} and schedule={schedule!r}"
            )
        if self.versions != versions_here():
            raise BackendError("it was compiled by another version of quantglow, LLVM or NumPy")
        names = (NATIVE, *LEVELS) if wanted == NATIVE else (wanted,)
        for name in names:
            if name in self.targets and self.targets[name] == key_here(name):
                return name
        raise BackendError(
            f"it is for {', '.join(self.targets)}, and this processor or target={wanted!r} is "
            "another one"
        )


def versions_here() -> str:
    """The versions of all that makes code here; empty where the source is unknown."""
    return hashed(code_versions() or ())


def key_here(name: str) -> str:
    """The hash of a target; empty if it does not run here."""
    return hashed((resolve(name).key,)) if name == NATIVE or runs_here(name) else ""


def hashed(parts: Iterable[str | bytes]) -> str:
    found = hashlib.sha256()
    for part in parts:
        add(found, part)
    return found.hexdigest()

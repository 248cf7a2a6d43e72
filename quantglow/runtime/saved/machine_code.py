"""Machine code in a saved model: what a process needs to run it without compiling.

::

    code.json   versions of what made the code, hashes of its targets, number of threads, schedule,
                names and sizes of entries
    code.bin    entries of the caches (``codegen.llvm.cache``), one behind the other

Entries are named by all that they depend on: the graph, the target, the number of threads.  They
are made in a child process with an empty cache, which compiles the model as a process that loads it
would.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantglow.codegen.llvm.cache import ObjectCache
from quantglow.codegen.llvm.isa.target import Target
from quantglow.codegen.llvm.kernel import add, code_versions
from quantglow.codegen.llvm.machine import copy_machine, host_entry
from quantglow.codegen.llvm.targets import LEVELS, NATIVE, resolve, runs_here
from quantglow.ir.graph.family import Case
from quantglow.runtime.programs.build import Compiler
from quantglow.runtime.saved.archives import CODE, CODE_TEXT
from quantglow.support.errors import BackendError, OptionError
from quantglow.support.pages import Content, Data, JoinedBytes
from quantglow.support.processes.isolation import IsolationError, start

CODE_MODES = ("ignore", "use", "require")
"""Uses of the code in a file that is loaded."""

CHILD = "quantglow.api.load:compile_saved"
SECONDS = 3600.0
"""Time limit of compiling for one target."""
KINDS = ("kernels", "programs")
"""Folders of a cache."""


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
        return {
            CODE_TEXT: json.dumps(text).encode(),
            CODE: JoinedBytes(tuple(self.entries.values())),
        }

    @staticmethod
    def of(text: bytes, content: bytes) -> IncludedCode:
        """The code from the contents of ``members``.  Raises one of ``DAMAGED_CONTENT``."""
        facts = json.loads(text)
        names = [str(name) for name, _ in facts["entries"]]
        sizes = [int(nbytes) for _, nbytes in facts["entries"]]
        if min(sizes, default=0) < 0 or sum(sizes) != len(content):
            raise ValueError("the sizes of its code are other ones")
        data, ends = memoryview(content), list(itertools.accumulate(sizes))
        parts = (data[end - nbytes : end] for end, nbytes in zip(ends, sizes, strict=True))
        targets = {str(name): str(key) for name, key in facts["targets"].items()}
        settings = (str(facts["versions"]), targets, int(facts["threads"]), str(facts["schedule"]))
        return IncludedCode(*settings, dict(zip(names, parts, strict=True)))

    def target_for(self, target: str, threads: int, schedule: str) -> str:
        """The name of the target whose code runs here: ``target``, or the best one for ``native``.

        Raises ``BackendError`` with the reason why there is none.
        """
        if (self.threads, self.schedule) != (threads, schedule):
            raise BackendError(
                f"it is for num_threads={self.threads} and schedule={self.schedule!r}, not for "
                f"num_threads={threads} and schedule={schedule!r}"
            )
        if self.versions != _versions_here():
            raise BackendError("it was compiled by another version of quantglow, LLVM or NumPy")
        names = (NATIVE, *LEVELS) if target == NATIVE else (target,)
        for name in names:
            if name in self.targets and self.targets[name] == key_here(name):
                return name
        raise BackendError(
            f"it is for {', '.join(self.targets)}, and this processor or target={target!r} is "
            "another one"
        )


def _versions_here() -> str:
    """The versions of all that makes code here; empty where the source is unknown."""
    return _hash_parts(code_versions() or ())


def key_here(name: str) -> str:
    """The hash of a target; empty if it does not run here."""
    return _hash_parts((resolve(name).key,)) if name == NATIVE or runs_here(name) else ""


def _hash_parts(parts: Iterable[str | bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        add(digest, part)
    return digest.hexdigest()


def check_targets(names: Sequence[str], compiler: Compiler) -> tuple[Target, ...]:
    """The targets whose code a file is to include, by their names.

    Raises ``OptionError`` for a model that other code generators compile, ``BackendError`` for
    targets that do not run here.
    """
    if names and (compiler.target is None or not compiler.is_own):
        raise OptionError(
            "include_code is for models that backend='llvm' compiles alone. Remedy: compile the "
            "model without backend and backends."
        )
    targets = tuple(map(resolve, names))
    if registered := [target.name for target in targets if target.is_registered]:
        raise OptionError(
            f"include_code is for quantglow's own targets; {', '.join(registered)} is registered "
            "by this process. Remedy: save without include_code; loading compiles the code."
        )
    return targets


def code_for(
    path: str | os.PathLike[str],
    names: Sequence[str],
    compiler: Compiler,
    cases: Sequence[Case],
) -> IncludedCode:
    """The code of a saved model for targets and cases.

    Raises ``OptionError``, and ``BackendError`` if it cannot be made.
    """
    targets = check_targets(names, compiler)
    if code_versions() is None:
        raise BackendError(
            "include_code needs the source files of quantglow, whose hash tells the version of "
            "code. Remedy: install quantglow as files, not in an archive."
        )
    facts = {
        "path": os.fspath(path),
        "threads": compiler.num_threads,
        "schedule": compiler.schedule,
        "cases": [case.to_json() for case in cases],
    }
    entries: dict[str, Data] = {**host_entry()}
    for name in names:
        entries |= _compile_entries({**facts, "target": name})
    keys = (_hash_parts((target.key,)) for target in targets)
    keys_by_target = dict(zip(names, keys, strict=True))
    return IncludedCode(
        _versions_here(), keys_by_target, compiler.num_threads, compiler.schedule, entries
    )


def _compile_entries(facts: Mapping[str, Any]) -> dict[str, bytes]:
    """The entries that a child with an empty cache makes.  Raises ``BackendError``."""
    with tempfile.TemporaryDirectory(prefix="quantglow-") as folder:
        try:
            copy_machine(Path(folder))
            with start(CHILD, (), {**facts, "cache": folder}, seconds=SECONDS) as call:
                call.result()
        except IsolationError as error:
            raise BackendError(
                f"the code for {facts['target']!r} could not be made: {error}. Remedy: save the "
                "model without include_code."
            ) from error
        return dict(_cache_entries(Path(folder)))


def _cache_entries(folder: Path) -> Iterator[tuple[str, bytes]]:
    """All entries of a cache."""
    for kind in KINDS:
        yield from ObjectCache(folder / kind).entries().items()

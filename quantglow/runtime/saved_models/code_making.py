"""Machine code for a saved model, made in a child process with an empty cache, which compiles the
model as a process that loads it would."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from quantglow.backends.llvm.isa.target import Target
from quantglow.backends.llvm.jit.cache import ObjectCache
from quantglow.backends.llvm.jit.host import host_entry
from quantglow.backends.llvm.jit.identity import code_versions
from quantglow.backends.llvm.jit.machine import copy_machine
from quantglow.backends.llvm.targets import resolve
from quantglow.errors import BackendError, OptionError
from quantglow.graph.signature import Shapes
from quantglow.pages import Data
from quantglow.processes.isolation import IsolationError, started
from quantglow.runtime.build import Compiler
from quantglow.runtime.saved_models.included_code import IncludedCode, hashed, versions_here

CHILD = "quantglow.driver.loading:compile_saved"
SECONDS = 3600.0
"""Time limit of compiling for one target."""
KINDS = ("kernels", "programs")
"""Folders of a cache."""


def checked_targets(names: Sequence[str], compiler: Compiler) -> tuple[Target, ...]:
    """The targets whose code a file is to include, by their names.

    Raises ``OptionError`` for a model that other code generators compile, ``BackendError`` for
    targets that do not run here.
    """
    if names and (compiler.target is None or not compiler.is_own):
        raise OptionError(
            "include_code is for models that backend='llvm' compiles alone. Remedy: compile the "
            "model without backend and backends."
        )
    return tuple(map(resolve, names))


def code_for(
    path: str | os.PathLike[str],
    names: Sequence[str],
    compiler: Compiler,
    shapes: Sequence[Shapes],
) -> IncludedCode:
    """The code of a saved model for targets and input shapes.

    Raises ``OptionError``, and ``BackendError`` if it cannot be made.
    """
    targets = checked_targets(names, compiler)
    if code_versions() is None:
        raise BackendError(
            "include_code needs the source files of quantglow, whose hash tells the version of "
            "code. Remedy: install quantglow as files, not in an archive."
        )
    facts = {
        "path": os.fspath(path),
        "threads": compiler.num_threads,
        "schedule": compiler.schedule,
        "shapes": [{name: list(shape) for name, shape in each.items()} for each in shapes],
    }
    entries: dict[str, Data] = {**host_entry()}
    for name in names:
        entries |= compiled_entries({**facts, "target": name})
    keys = (hashed((target.key,)) for target in targets)
    made_for = dict(zip(names, keys, strict=True))
    return IncludedCode(versions_here(), made_for, compiler.num_threads, compiler.schedule, entries)


def compiled_entries(facts: Mapping[str, Any]) -> dict[str, bytes]:
    """The entries that a child with an empty cache makes.  Raises ``BackendError``."""
    with tempfile.TemporaryDirectory(prefix="quantglow-") as folder:
        try:
            copy_machine(Path(folder))
            with started(CHILD, (), {**facts, "cache": folder}, seconds=SECONDS) as call:
                call.result()
        except IsolationError as error:
            raise BackendError(
                f"the code for {facts['target']!r} could not be made: {error}. Remedy: save the "
                "model without include_code."
            ) from error
        return dict(found_in(Path(folder)))


def found_in(folder: Path) -> Iterator[tuple[str, bytes]]:
    """All entries of a cache."""
    for kind in KINDS:
        yield from ObjectCache(folder / kind).entries().items()

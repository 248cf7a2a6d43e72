"""Measured costs of this machine's core: a JSON file in ``$QUANTGLOW_CACHE_DIR/machines``.

LLVM's name of a processor is too little: virtual machines report names of others.  The file is
named by a hash of all that Linux tells of the processor and its caches.  Files are not trusted: one
that is damaged, of other costs than a processor can have, or of another machine is not used, and
a warning says so.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import warnings
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from quantglow import debug
from quantglow.backends.llvm.isa.costs import Core
from quantglow.backends.llvm.jit.cache import cache_folder, unused
from quantglow.backends.llvm.jit.host import CPUINFO, SUFFIX
from quantglow.backends.llvm.jit.private_folder import PrivateFolder

FOLDER = "machines"
FORMAT = "quantglow-machine-1"
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
DAMAGED = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""Errors of reading a file that was altered."""
MOST_CYCLES = 1000.0
"""Maximum of every cost of a core in a file."""

_FACTS = (
    ("vendor_id", "CPU implementer", "mvendorid"),
    ("cpu family", "CPU architecture", "marchid"),
    ("model", "CPU part", "mimpid"),
    ("stepping", "CPU revision", "CPU variant"),
    ("model name", "uarch"),
    ("flags", "Features", "isa"),
)
"""Lines of ``/proc/cpuinfo`` that name a processor, by their names on x86, Arm and RISC-V."""


def machine() -> dict[str, str] | None:
    """The facts that name this machine; None where the system does not say them."""
    try:
        first, _, _ = CPUINFO.read_text().partition("\n\n")
    except OSError:
        return None
    lines = dict(
        re.split(r"\s*:\s*", line, maxsplit=1) for line in first.splitlines() if ":" in line
    )
    found = {names[0]: lines[name] for names in _FACTS for name in names if name in lines}
    return {**found, **_caches()} if "flags" in found else None


def _caches() -> dict[str, str]:
    """Size of each cache, by level and kind."""
    found = {}
    for folder in sorted(CACHES.glob("index*")):
        try:
            level, kind, size = (
                (folder / n).read_text().strip() for n in ("level", "type", "size")
            )
        except OSError:
            continue
        found[f"L{level} {kind}"] = size
    return found


def machine_identity() -> str | None:
    """A hash of the facts that name this machine; None where the system does not say them."""
    facts = machine()
    return None if facts is None else hash_of(facts)[:32]


def measured_core(level: str) -> Core | None:
    """The core that ``keep_core`` wrote for a level of instructions on this machine; None where
    there is none.  Warns of a file that is not used."""
    folder = cache_folder(FOLDER)
    if folder is None or not folder.exists() or (identity := machine_identity()) is None:
        return None
    try:
        content, _ = PrivateFolder(folder).read(identity + SUFFIX)
        return _core_in(content, level)
    except FileNotFoundError:
        return None
    except (OSError, *DAMAGED) as error:
        warnings.warn(
            f"the measured costs of this machine ({FOLDER}/{identity}{SUFFIX}) are not used: "
            f"{error}. Remedy: quantglow tune --machine",
            stacklevel=2,
        )
        return None


def _core_in(content: bytes, level: str) -> Core | None:
    """The core of a file for a level.  Raises one of ``DAMAGED``."""
    data = json.loads(content)
    digest = data.pop("sha256")
    if data["format"] != FORMAT or digest != hash_of(data):
        raise ValueError("it is damaged, or of another version")
    if data["machine"] != machine():
        raise ValueError("it is of another machine")
    found = data["cores"].get(level)
    return None if found is None else core_of(found)


def keep_core(level: str, core: Core, facts: Mapping[str, Any]) -> Path | None:
    """Write the core for a level, with ``facts`` about its measurement; other levels stay.  The
    path of the file; None where there is no cache, or the machine has no name.  Raises ``OSError``.
    """
    folder, identity = cache_folder(FOLDER), machine_identity()
    if folder is None or identity is None:
        return None
    cores = _cores(folder, identity)
    cores[level] = {**core_to_json(core), "facts": dict(facts)}
    data = {"format": FORMAT, "machine": machine(), "cores": cores}
    text = json.dumps({**data, "sha256": hash_of(data)}, indent=1)
    PrivateFolder(folder).write(identity + SUFFIX, text.encode())
    return folder / (identity + SUFFIX)


def _cores(folder: Path, identity: str) -> dict[str, Any]:
    """The cores that a file has; none where it cannot be used."""
    try:
        content, _ = PrivateFolder(folder).read(identity + SUFFIX)
        _core_in(content, "")
        return dict(json.loads(content)["cores"])
    except OSError as error:
        unused(error)
    except DAMAGED as error:
        debug.log(1, f"{folder / identity}{SUFFIX} is replaced: {error}")
    return {}


def copy_machine(cache: Path) -> None:
    """Copy the file of this machine to another cache, so that code made there is for this core."""
    folder, identity = cache_folder(FOLDER), machine_identity()
    if folder is None or identity is None:
        return
    try:
        content, _ = PrivateFolder(folder).read(identity + SUFFIX)
        PrivateFolder(cache / FOLDER).write(identity + SUFFIX, content)
    except OSError as error:
        unused(error)


def core_to_json(core: Core) -> dict[str, Any]:
    """The costs in types that ``json`` writes; None for infinity."""
    found = asdict(core)
    return {**found, "issue": None if math.isinf(core.issue) else core.issue}


def core_of(data: Mapping[str, Any]) -> Core:
    """The core of such costs.  Raises ``ValueError``, ``KeyError`` or ``TypeError``."""
    values: dict[str, Any] = {field.name: data[field.name] for field in fields(Core)}
    for name, value in values.items():
        if isinstance(value, bool) != isinstance(getattr(Core(), name), bool):
            raise TypeError(f"{name} is {value!r}")
        if name == "finish":
            four, two, one = (_cycles(name, cycles) for cycles in value)
            values[name] = (four, two, one)
        elif not isinstance(value, bool):
            values[name] = math.inf if name == "issue" and value is None else _cycles(name, value)
    if values["issue"] < 0.1:
        raise ValueError("issue is less than any processor has")
    return Core(**values)


def _cycles(name: str, value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value <= MOST_CYCLES:
        raise ValueError(f"{name} is {value!r}")
    return float(value)


def hash_of(data: Mapping[str, Any]) -> str:
    """SHA-256 of facts."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()

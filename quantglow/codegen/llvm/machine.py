"""Host machine: the processor that LLVM detects, and the measured costs of its core.

``$QUANTGLOW_CACHE_DIR/hosts`` remembers LLVM's answer for Linux's description of the processor, so
that a process whose kernels are all in the cache does without LLVM.

LLVM's name of a processor does not identify a machine: virtual machines report names of others.
The file of measured costs is named by a hash of all that Linux reports about the processor and its
caches.  Files are not trusted: one that is damaged, has costs that no processor can have, or
belongs to another machine is not used, and a warning says so.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import warnings
from collections.abc import Mapping
from dataclasses import asdict, fields
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite

from quantglow.codegen.llvm.cache import cache_folder, carried_entry, unused
from quantglow.codegen.llvm.isa.costs import Core
from quantglow.codegen.llvm.isa.target import Host
from quantglow.support import debug
from quantglow.support.private_folder import PrivateFolder

SUFFIX = ".json"
CPUINFO = Path("/proc/cpuinfo")
_CHANGING = ("processor", "cpu MHz", "core id", "apicid", "initial apicid", "bogomips")
"""Lines that differ between the cores of a processor, or from second to second."""
_FEATURES = ("flags", "Features", "isa")
"""The line of features on x86, Arm and RISC-V."""

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


@cache
def host() -> Host:
    """This processor."""
    folder, key = cache_folder("hosts"), identity()
    if key is None:
        return _detect()
    if (brought := carried_entry(_entry_name(key))) is not None and (host_facts := read(brought)):
        return host_facts
    if folder is None:
        return _detect()
    host_facts = recall(folder, key)
    if host_facts is None:
        host_facts = _detect()
        remember(folder, key, host_facts)
    return host_facts


def host_entry() -> dict[str, bytes]:
    """The entry that tells a process on an equal processor what LLVM would; none if that is
    unknown."""
    key = identity()
    return {} if key is None else {_entry_name(key): host_text(host())}


def _entry_name(key: str) -> str:
    return f"host_{key}"


def host_text(host: Host) -> bytes:
    return json.dumps(asdict(host)).encode()


def identity() -> str | None:
    """A hash of all that LLVM's answer depends on; None where that is unknown."""
    try:
        first, _, _ = CPUINFO.read_text().partition("\n\n")
    except OSError:
        return None
    lines = [line for line in first.splitlines() if line.split("\t")[0] not in _CHANGING]
    if not any(line.startswith(_FEATURES) for line in lines):
        return None
    text = "\n".join([llvmlite.__version__, *lines])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def recall(folder: Path, key: str) -> Host | None:
    """The host that ``remember`` wrote, or None."""
    try:
        content, _ = PrivateFolder(folder).read(key + SUFFIX)
    except OSError as error:
        unused(error)
        return None
    return read(content)


def read(content: bytes | memoryview) -> Host | None:
    """The host in a text, or None."""
    try:
        host = Host(**json.loads(bytes(content)))
    except (ValueError, TypeError, RecursionError):
        return None
    return host if all(isinstance(value, str) for value in asdict(host).values()) else None


def remember(folder: Path, key: str, host: Host) -> None:
    """Write it; where that is impossible, LLVM is asked again next time."""
    try:
        PrivateFolder(folder).write(key + SUFFIX, host_text(host))
        PrivateFolder(folder).sweep()
    except OSError as error:
        unused(error)


def _detect() -> Host:
    # Only here: see the module's first lines.
    from quantglow.codegen.llvm.compiler import detect_host

    return detect_host()


def machine() -> dict[str, str] | None:
    """The facts that name this machine; None where the system does not say them."""
    try:
        first, _, _ = CPUINFO.read_text().partition("\n\n")
    except OSError:
        return None
    lines = dict(
        re.split(r"\s*:\s*", line, maxsplit=1) for line in first.splitlines() if ":" in line
    )
    facts = {names[0]: lines[name] for names in _FACTS for name in names if name in lines}
    return {**facts, **_caches()} if "flags" in facts else None


def _caches() -> dict[str, str]:
    """Size of each cache, by level and kind."""
    caches = {}
    for folder in sorted(CACHES.glob("index*")):
        try:
            level, kind, size = (
                (folder / n).read_text().strip() for n in ("level", "type", "size")
            )
        except OSError:
            continue
        caches[f"L{level} {kind}"] = size
    return caches


def machine_identity() -> str | None:
    """A hash of the facts that name this machine; None where the system does not say them."""
    facts = machine()
    return None if facts is None else short_hash(facts)[:32]


def read_core(level: str) -> Core | None:
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
    if data["format"] != FORMAT or digest != short_hash(data):
        raise ValueError("it is damaged, or of another version")
    if data["machine"] != machine():
        raise ValueError("it is of another machine")
    entry = data["cores"].get(level)
    return None if entry is None else parse_core(entry)


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
    text = json.dumps({**data, "sha256": short_hash(data)}, indent=1)
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
    fields = asdict(core)
    return {**fields, "issue": None if math.isinf(core.issue) else core.issue}


def parse_core(data: Mapping[str, Any]) -> Core:
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


def short_hash(data: Mapping[str, Any]) -> str:
    """SHA-256 of facts."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()

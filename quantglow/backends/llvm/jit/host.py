"""Detection of this processor.

LLVM detects it; ``$QUANTGLOW_CACHE_DIR/hosts`` remembers the answer for Linux's description of the
processor, so that a process whose kernels are all in the cache does without LLVM.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from functools import cache
from pathlib import Path

import llvmlite

from quantglow.backends.llvm.isa.target import Host
from quantglow.backends.llvm.jit.cache import cache_folder, unused
from quantglow.backends.llvm.jit.carried import carried_entry
from quantglow.backends.llvm.jit.private_folder import PrivateFolder

SUFFIX = ".json"
CPUINFO = Path("/proc/cpuinfo")
_CHANGING = ("processor", "cpu MHz", "core id", "apicid", "initial apicid", "bogomips")
"""Lines that differ between the cores of a processor, or from second to second."""
_FEATURES = ("flags", "Features", "isa")
"""The line of features on x86, Arm and RISC-V."""


@cache
def host() -> Host:
    """This processor."""
    folder, key = cache_folder("hosts"), identity()
    if key is None:
        return _detected()
    if (brought := carried_entry(entry_name(key))) is not None and (found := read(brought)):
        return found
    if folder is None:
        return _detected()
    found = remembered(folder, key)
    if found is None:
        found = _detected()
        remember(folder, key, found)
    return found


def host_entry() -> dict[str, bytes]:
    """The entry that tells a process on an equal processor what LLVM would; none if that is
    unknown."""
    key = identity()
    return {} if key is None else {entry_name(key): text_of(host())}


def entry_name(key: str) -> str:
    return f"host_{key}"


def text_of(host: Host) -> bytes:
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


def remembered(folder: Path, key: str) -> Host | None:
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
        PrivateFolder(folder).write(key + SUFFIX, text_of(host))
        PrivateFolder(folder).sweep()
    except OSError as error:
        unused(error)


def _detected() -> Host:
    # Only here: see the module's first lines.
    from quantglow.backends.llvm.jit.compiler import detect_host

    return detect_host()

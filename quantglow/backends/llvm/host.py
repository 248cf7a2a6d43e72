"""What processor this is.

LLVM finds it out; ``$QUANTGLOW_CACHE_DIR/hosts`` remembers it for what Linux says of the processor,
so that a process whose kernels are all in the cache does without LLVM.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from functools import cache
from pathlib import Path

import llvmlite

from quantglow import debug
from quantglow.backends.llvm.cache import cache_folder, is_private
from quantglow.backends.llvm.target import Host
from quantglow.files import replacing

CPUINFO = Path("/proc/cpuinfo")
_CHANGING = ("processor", "cpu MHz", "core id", "apicid", "initial apicid", "bogomips")
"""What differs between the cores of a processor, or from second to second."""


@cache
def host() -> Host:
    """This processor."""
    folder = cache_folder("hosts")
    key = identity()
    if folder is None or key is None or (folder.exists() and not is_private(folder)):
        return _detected()
    path = folder / f"{key}.json"
    found = remembered(path)
    if found is None:
        found = _detected()
        remember(path, found)
    return found


def identity() -> str | None:
    """A hash of all that LLVM's answer depends on; None where that is unknown."""
    try:
        first, _, _ = CPUINFO.read_text().partition("\n\n")
    except OSError:
        return None
    lines = [line for line in first.splitlines() if line.split("\t")[0] not in _CHANGING]
    if not any(line.startswith("flags") for line in lines):
        return None
    text = "\n".join([llvmlite.__version__, *lines])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def remembered(path: Path) -> Host | None:
    """The host in a file that ``remember`` wrote, or None."""
    try:
        host = Host(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None
    return host if all(isinstance(value, str) for value in asdict(host).values()) else None


def remember(path: Path, host: Host) -> None:
    """Write it; where that is impossible, LLVM is asked again next time."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with replacing(path) as temporary:
            temporary.write_text(json.dumps(asdict(host)))
    except OSError as error:
        debug.log(2, f"host: {path} is not kept: {error}")


def _detected() -> Host:
    # Only here: see the module's first lines.
    from quantglow.backends.llvm.compiler import detect_host

    return detect_host()

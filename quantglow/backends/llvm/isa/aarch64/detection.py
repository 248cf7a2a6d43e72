"""Features of this processor that LLVM does not report: under emulation it omits dot products.

Linux tells them in the auxiliary vector of a process, macOS by ``sysctl``.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from dataclasses import replace

from quantglow.backends.llvm.isa.target import Host
from quantglow.processes.system import c_function

ARCHITECTURES = ("aarch64", "arm64")

LINUX = {"dotprod": (16, 20), "i8mm": (26, 13)}
"""By feature: the entry of the auxiliary vector (AT_HWCAP, AT_HWCAP2), and its bit there."""
MACOS = {
    "dotprod": b"hw.optional.arm.FEAT_DotProd",
    "i8mm": b"hw.optional.arm.FEAT_I8MM",
}


def completed(host: Host) -> Host:
    """``host`` with the features that this system tells."""
    if platform.machine() not in ARCHITECTURES:
        return host
    ask = {"linux": linux_has, "darwin": macos_has}.get(sys.platform)
    found = [] if ask is None else [name for name in LINUX if not host.has(name) and ask(name)]
    return replace(host, features=",".join([host.features, *(f"+{name}" for name in found)]))


def linux_has(feature: str) -> bool:
    """Whether the auxiliary vector has a feature's bit."""
    entry, bit = LINUX[feature]
    getauxval = c_function("getauxval")
    if getauxval is None:
        return False
    getauxval.argtypes, getauxval.restype = (ctypes.c_ulong,), ctypes.c_ulong
    return bool(getauxval(entry) >> bit & 1)


def macos_has(feature: str) -> bool:
    """Whether the kernel's setting of a feature is 1."""
    sysctl = c_function("sysctlbyname")
    value = ctypes.c_int(0)
    size = ctypes.c_size_t(ctypes.sizeof(value))
    if sysctl is None:
        return False
    failed = sysctl(MACOS[feature], ctypes.byref(value), ctypes.byref(size), None, 0)
    return not failed and value.value == 1

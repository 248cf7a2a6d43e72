"""The processor, its cores and the versions of the packages that a result depends on."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("quantglow", "numpy", "onnx", "onnxruntime", "llvmlite", "openvino", "nncf")


def processor() -> str:
    """Name of the processor, from Linux or the platform module."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def environment() -> dict[str, Any]:
    """Processor, number of cores and versions of the installed packages."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {"processor": processor(), "cores": os.cpu_count(), "versions": versions}

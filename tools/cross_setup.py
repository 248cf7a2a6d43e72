"""Emulators, among them an AArch64 system: QEMU, a Debian userland with Python, and wheels.

``make cross-setup`` installs the packages (as root), and writes the userland to ``folder()``; it
takes about a minute.  There is one interpreter for each level of the instruction set,
``usr/bin/python-neon`` and so on, which starts like any other program.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

PACKAGES = (
    "qemu-user",
    "gcc-aarch64-linux-gnu",
    "libc6-dev-arm64-cross",
    "gcc-riscv64-linux-gnu",
    "libc6-dev-riscv64-cross",
    "lld-19",
    "clang",
    "chromium-headless-shell",
    "valgrind",
    "nodejs",
    "mmdebstrap",
    "llvm-19",
    "qemu-system-arm",
    "gcc-arm-none-eabi",
    "libnewlib-arm-none-eabi",
)
SUITE = "bookworm"
INCLUDED = ("python3.11", "libgcc-s1", "libstdc++6")
PYTHON = "3.11"
TAGS = ("2_28", "2_27", "2_17")
"""Versions of glibc for which wheels are made."""
WHEELS = (
    "numpy>=2.0",
    "onnx>=1.20",
    "onnxruntime>=1.20",
    "llvmlite>=0.50",
    "scipy>=1.13",
    "threadpoolctl>=3.1",
    "rich>=13",
    "pytest>=8",
    "pytest-xdist>=3.6",
    "hypothesis>=6.100",
)

PROCESSORS = {"neon": "cortex-a57", "dotprod": "cortex-a76", "i8mm": "max,sve=off,sme=off"}
"""QEMU's name of a processor whose best level is this one.  With SVE and SME, float32 products of
OpenBLAS give NaN under QEMU 7.2."""

SITE = "usr/lib/python3.11/wheels"
CPUINFO = """processor	: 0
BogoMIPS	: 100.00
Features	: fp asimd crc32 cpuid
CPU implementer	: 0x41
CPU architecture: 8
CPU variant	: 0x1
CPU part	: 0xd07
CPU revision	: 0

"""
"""``/proc/cpuinfo`` of an Arm processor: onnxruntime does not start on that of x86."""

START = """#!/bin/sh
PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}{site}"; export PYTHONPATH
exec qemu-aarch64 -0 "$0" -cpu {processor} -L {root} {root}/usr/bin/python{version} "$@"
"""


def folder() -> Path:
    """The userland: ``$QUANTGLOW_CROSS_DIR``, by default in ``~/.cache/quantglow-cross``."""
    root = os.environ.get("QUANTGLOW_CROSS_DIR") or Path.home() / ".cache" / "quantglow-cross"
    return Path(root) / "aarch64"


def interpreter(level: str) -> Path:
    """The Python of an emulated processor whose best level is ``level``."""
    return folder() / "usr" / "bin" / f"python-{level}"


def is_installed() -> bool:
    """Whether emulated Pythons can be started."""
    found = shutil.which("qemu-aarch64") is not None
    return found and all(interpreter(level).exists() for level in PROCESSORS)


def counter() -> Path:
    """QEMU's plugin that counts instructions."""
    return folder().parent / "instruction_counter.so"


def run(*command: str | Path) -> None:
    print("+", *command, flush=True)
    subprocess.run([str(part) for part in command], check=True)


def install_packages() -> None:
    """Debian's packages that are missing."""
    known = subprocess.run(
        ["dpkg-query", "--show", "--showformat=${Package}\n"], capture_output=True, text=True
    )
    if missing := sorted(set(PACKAGES) - set(known.stdout.split())):
        run("apt-get", "update", "-q")
        run("apt-get", "install", "-q", "-y", "--no-install-recommends", *missing)


def make_userland(root: Path) -> None:
    """Python and its libraries, and wheels beside them."""
    root.parent.mkdir(parents=True, exist_ok=True)
    included = f"--include={','.join(INCLUDED)}"
    run("mmdebstrap", "--variant=extract", "--architectures=arm64", included, SUITE, root)
    tags = [f"--platform=manylinux_{tag}_aarch64" for tag in TAGS]
    only = ("--only-binary=:all:", f"--python-version={PYTHON}", "--implementation=cp")
    pip = (sys.executable, "-m", "pip", "install", "-q", "--target", root / SITE)
    run(*pip, *tags, "--platform=manylinux2014_aarch64", *only, *WHEELS)


def write_starters(root: Path) -> None:
    """An interpreter for each processor; ``sys.executable`` is that script, so that children of a
    test are emulated, too."""
    (root / "proc").mkdir(exist_ok=True)
    (root / "proc" / "cpuinfo").write_text(CPUINFO)
    for level, processor in PROCESSORS.items():
        text = START.format(processor=processor, root=root, site=root / SITE, version=PYTHON)
        interpreter(level).write_text(text)
        interpreter(level).chmod(0o755)


def main() -> None:
    """Install what is missing."""
    install_packages()
    run(sys.executable, "-m", "pip", "install", "-q", "wasmtime>=50")
    if not (folder() / SITE / "numpy").exists():
        shutil.rmtree(folder(), ignore_errors=True)
        make_userland(folder())
    write_starters(folder())
    source = Path(__file__).with_name("instruction_counter.c")
    run("gcc", "-O2", "-shared", "-fPIC", "-o", counter(), source)
    run(interpreter("i8mm"), "-c", "import llvmlite, numpy, onnxruntime; print('ready')")


if __name__ == "__main__":
    main()

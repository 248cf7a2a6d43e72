"""Emulators, among them an AArch64 system: QEMU, a Debian userland with Python, and wheels.

``make cross-setup`` installs the packages (as root) and whatever else tests are skipped without:
compilers, valgrind, a browser.  It writes the userland to ``folder()``.  There is one interpreter
for each level of the instruction set, ``usr/bin/python-neon`` and so on, which starts like any
other program.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

PACKAGES = (
    "binutils",
    "cmake",
    "g++",
    "gcc",
    "make",
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

WAIT_SECONDS, LOCK_SECONDS = 5, 300
"""Time before a download is tried again, and time that another apt may take, in seconds."""

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
    actual = shutil.which("qemu-aarch64") is not None
    return actual and all(interpreter(level).exists() for level in PROCESSORS)


def environment(root: Path) -> dict[str, str]:
    """Variables for an emulated Python that imports the repository at ``root``."""
    ours = {"PYTHONPATH": str(root), "QUANTGLOW_CACHE_DIR": "", "OPENBLAS_NUM_THREADS": "1"}
    return {**os.environ, **ours}


def counter() -> Path:
    """QEMU's plugin that counts instructions."""
    return folder().parent / "instruction_counter.so"


def run(*command: str | Path) -> None:
    """Run a command, and show it.  Raises ``CalledProcessError`` if it fails."""
    print("+", *command, flush=True)
    subprocess.run([str(part) for part in command], check=True)


def twice(action: Callable[[], None]) -> None:
    """Do what downloads something, a second time if it fails: registries fail at times."""
    try:
        action()
    except subprocess.CalledProcessError as error:
        print(f"{error}; trying once more", flush=True)
        time.sleep(WAIT_SECONDS)
        action()


def download(*command: str | Path) -> None:
    """``run`` a command that downloads, ``twice``."""
    twice(lambda: run(*command))


def missing_packages(packages: Sequence[str]) -> list[str]:
    """Packages of Debian, among these, that are not installed."""
    query = ("dpkg-query", "--show", "--showformat=${db:Status-Abbrev} ${Package}\n")
    lines = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()
    installed = {line.split()[-1] for line in lines if line.startswith("ii")}
    return sorted(set(packages) - installed)


def is_known(package: str) -> bool:
    """Whether apt has a package of that name to install."""
    policy = subprocess.run(("apt-cache", "policy", package), capture_output=True, text=True)
    return "Candidate:" in policy.stdout and "Candidate: (none)" not in policy.stdout


def install_packages(packages: Sequence[str] = PACKAGES) -> None:
    """Install packages of Debian that are missing.  Ends the program with names and a
    remedy where that is not possible."""
    if shutil.which("dpkg-query") is None:
        sys.exit(f"this is no Debian. Remedy: install {' '.join(packages)} in another way")
    missing = missing_packages(packages)
    if not missing:
        return
    named = " ".join(missing)
    if os.geteuid():
        sys.exit(f"not installed: {named}. Remedy: as root, apt-get install {named}")
    try:
        download("apt-get", "update", "-q")
    except subprocess.CalledProcessError:
        print("apt-get update failed; trying with the lists of packages that are here", flush=True)
    if unknown := [package for package in missing if not is_known(package)]:
        sys.exit(
            f"apt has no package {', '.join(unknown)}. Remedy: use Debian 12 or later with "
            "deb.debian.org among its sources, or install these programs in another way and take "
            f"them out of PACKAGES in {Path(__file__).name}"
        )
    os.environ["DEBIAN_FRONTEND"] = "noninteractive"
    ours = ("-o", f"DPkg::Lock::Timeout={LOCK_SECONDS}", "--no-install-recommends")
    download("apt-get", "install", "-q", "-y", *ours, *missing)


def make_userland(root: Path) -> None:
    """Python and its libraries, and wheels beside them."""
    shutil.rmtree(root, ignore_errors=True)
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
    download(sys.executable, "-m", "pip", "install", "-q", "wasmtime>=50")
    stamp, recipe = folder() / "made-of.txt", "\n".join((SUITE, *INCLUDED, *TAGS, *WHEELS))
    if not stamp.exists() or stamp.read_text() != recipe:
        twice(lambda: make_userland(folder()))
        stamp.write_text(recipe)
    write_starters(folder())
    source = Path(__file__).with_name("instruction_counter.c")
    run("gcc", "-O2", "-shared", "-fPIC", "-o", counter(), source)
    run(interpreter("i8mm"), "-c", "import llvmlite, numpy, onnxruntime; print('ready')")


if __name__ == "__main__":
    main()

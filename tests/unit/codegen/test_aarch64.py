"""AArch64: detection, relocations, and code that LLVM selects, on any machine."""

from __future__ import annotations

import ctypes
import platform
import subprocess
import sys
from collections.abc import Callable

import pytest

from quantglow.codegen.llvm import targets
from quantglow.codegen.llvm.isa.aarch64 import instructions as detection
from quantglow.codegen.llvm.isa.aarch64.instructions import FAMILY, AArch64Linking
from quantglow.codegen.llvm.isa.target import Host

LEVELS = [level.name for level in FAMILY.levels]
LINUX = Host("aarch64-unknown-linux-gnu", "neoverse-n1", "+neon")
MAC = Host("arm64-apple-darwin24.1.0", "apple-m1", "+neon,+dotprod")
DOTPROD, I8MM = {16: 1 << 20, 26: 0}, {16: 1 << 20, 26: 1 << 13}


def native(host: Host, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(targets, "host", lambda: host)
    return targets.resolve.__wrapped__("native").name


@pytest.fixture
def auxiliary_vector(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[int, int]], None]:
    """Makes this process look like one on an Arm Linux with such a vector."""

    def become(vector: dict[int, int]) -> None:
        function = type("", (), {"__call__": lambda self, entry: vector[entry]})()
        monkeypatch.setattr(platform, "machine", lambda: "aarch64")
        monkeypatch.setattr(sys, "platform", "linux")
        monkeypatch.setattr(detection, "c_function", lambda name: function)

    return become


@pytest.mark.parametrize(
    ("vector", "level"), [({16: 0, 26: 0}, "neon"), (DOTPROD, "dotprod"), (I8MM, "i8mm")]
)
def test_the_auxiliary_vector_tells_the_level(
    vector: dict[int, int],
    level: str,
    auxiliary_vector: Callable[[dict[int, int]], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    auxiliary_vector(vector)
    assert native(LINUX, monkeypatch) == level


def test_the_settings_of_macos_tell_the_level(monkeypatch: pytest.MonkeyPatch) -> None:
    def sysctl(name: bytes, value: object, *_: object) -> int:
        ctypes.cast(value, ctypes.POINTER(ctypes.c_int))[0] = 1  # type: ignore[arg-type]
        return 0

    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(detection, "c_function", lambda name: sysctl)
    assert native(MAC, monkeypatch) == "i8mm"


def test_a_system_that_tells_nothing_leaves_llvm_s_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    monkeypatch.setattr(sys, "platform", "win32")
    assert native(MAC, monkeypatch) == "dotprod"


ADRP, ADD, LDR_Q, BL = 0x90000000, 0x91000000, 0x3DC00000, 0x94000000


@pytest.mark.parametrize(
    ("kind", "instruction", "at", "target", "expected"),
    [
        (275, ADRP, 0x10, 0x5123, 0xB0000020),
        (275, ADRP, 0x5010, 0x123, 0xF0FFFFC0),
        (277, ADD, 0, 0x5123, 0x91048C00),
        (299, LDR_Q, 0, 0x5120, 0x3DC04800),
        (283, BL, 0x100, 0x1100, 0x94000400),
        (282, 0x14000000, 0x1100, 0x100, 0x17FFFC00),
    ],
)
def test_relocations_are_those_of_the_manual(
    kind: int, instruction: int, at: int, target: int, expected: int
) -> None:
    data = bytearray(0x6000)
    data[at : at + 4] = instruction.to_bytes(4, "little")
    assert AArch64Linking().patch(data, at, kind, target)
    assert data[at : at + 4].hex() == expected.to_bytes(4, "little").hex()


def test_other_relocations_are_refused() -> None:
    assert not AArch64Linking().patch(bytearray(8), 0, 311, 4)


COMPILED = """
import sys
from quantglow.codegen.llvm.emission import emit_program
from quantglow.codegen.llvm.compiler import assembly
from quantglow.runtime.native.table_runner import run_time_texts
from quantglow.codegen.llvm.targets import level_target
from tests.matrix.harness import planned
from tests.support.pinned import NAMES, pinned

target = level_target(sys.argv[1])
texts = set(run_time_texts(target).values())
for name in sys.argv[2:] or NAMES:
    texts.update(emit_program(*planned(pinned(name), unsigned=False), target).texts)
print(*(assembly(target, text) for text in texts))
"""
"""Generates assembly of networks in a process of its own: LLVM ends it where it cannot."""


def assembly(level: str, *networks: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", COMPILED, level, *networks], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def instructions(text: str) -> set[str]:
    return {line.split()[0] for line in text.splitlines() if line.startswith("\t")}


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
def test_llvm_selects_instructions_for_all_networks(level: str) -> None:
    assert {"sqxtn", "fcvtns", "isb"} <= instructions(assembly(level))


OF_LEVELS = {"dotprod": {"sdot", "udot"}, "i8mm": {"usdot", "sudot", "smmla", "usmmla"}}


@pytest.mark.slow_variants
@pytest.mark.parametrize("level", LEVELS)
def test_code_of_a_level_has_no_instruction_of_a_better_one(level: str) -> None:
    better = [name for name in LEVELS[: LEVELS.index(level)] if name in OF_LEVELS]
    actual = instructions(assembly(level, "residual", "tables"))
    assert not actual & {name for other in better for name in OF_LEVELS[other]}
    assert level not in OF_LEVELS or "sdot" in actual

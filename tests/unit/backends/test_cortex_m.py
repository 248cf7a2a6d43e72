"""Code for Cortex-M is made on any machine, and runs on none that has Python."""

from __future__ import annotations

import re

import pytest

from quantglow.backends.llvm.emission import emit_program
from quantglow.backends.llvm.isa.cortex_m.levels import LEVELS
from quantglow.backends.llvm.jit.compiler import assembly
from quantglow.backends.llvm.targets import level_target, resolve
from quantglow.errors import BackendError
from tests.matrix.harness import planned
from tests.support.pinned import pinned

NAMES = [level.name for level in LEVELS]


@pytest.mark.parametrize("level", NAMES)
def test_a_process_of_python_refuses_them(level: str) -> None:
    with pytest.raises(BackendError, match="this processor is"):
        resolve(level)


@pytest.mark.parametrize("level", NAMES)
def test_triples_have_four_parts(level: str) -> None:
    """LLVM takes shorter ones for soft-float systems."""
    assert level_target(level).triple.count("-") == 3


@pytest.mark.parametrize("level", NAMES)
def test_indices_have_the_width_of_registers(level: str) -> None:
    texts = emit_program(*planned(pinned("tables"), unsigned=False), level_target(level)).texts
    assert not [t for t in texts if re.search(r"(phi|mul|udiv) i64|ptr %\w+, i64", t)]


@pytest.mark.parametrize("level", NAMES)
def test_integer_networks_need_no_library(level: str) -> None:
    target = level_target(level)
    texts = emit_program(*planned(pinned("tables"), unsigned=False), target).texts
    called = {n for t in texts for n in re.findall(r"\tblx?\t(\w+)", assembly(target, t))}
    assert not called

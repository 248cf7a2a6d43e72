"""Levels from outside of the package: their names, and what caches know of them."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

import quantglow as qg
from quantglow.codegen.llvm import targets
from quantglow.codegen.llvm.emission import emit_program
from quantglow.codegen.llvm.isa import portable
from quantglow.codegen.llvm.isa.target import TargetFamily
from quantglow.codegen.llvm.isa.x86 import levels as x86
from quantglow.codegen.llvm.isa.x86.instructions import X86
from quantglow.codegen.llvm.kernel import call_names
from quantglow.codegen.llvm.machine import host
from quantglow.memory.planning import plan_program
from quantglow.runtime.programs.program_keys import key_of_graph
from tests.support.examples import assert_equal_outputs, int8_graph


class Own(portable.Portable):
    """Portable code under another class."""


class OwnX86(X86):
    """A level of x86-64 under another class."""


def family(name: str, vector_nbytes: int = 16) -> TargetFamily:
    level = replace(portable.PORTABLE, name=name, isa=Own(vector_nbytes, 16, False))
    return replace(portable.FAMILY, levels=(level,))


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "_LEVELS", dict(targets._LEVELS))


@pytest.mark.parametrize("name", ["native", "portable", "avx2"])
def test_names_of_quantglow_are_refused(name: str) -> None:
    with pytest.raises(qg.OptionError, match=f"{name}: a target of quantglow has this name"):
        qg.register_target(family(name))


def test_a_level_takes_the_place_of_its_former_self() -> None:
    for nbytes in (16, 32):
        qg.register_target(family("own", nbytes))
        assert targets.resolve("own").vector_nbytes == nbytes


def test_native_stays_what_it_is() -> None:
    before = targets.resolve("native").name
    qg.register_target(family("own"))
    assert targets.resolve("native").name == before
    assert "own" not in targets.LEVELS


def test_errors_list_it() -> None:
    qg.register_target(family("own"))
    with pytest.raises(qg.BackendError, match=r"unknown target 'owl'.*, own;"):
        qg.compile(int8_graph("mnist"), target="owl")


def test_no_cache_knows_its_code() -> None:
    qg.register_target(family("own"))
    target, graph = targets.resolve("own"), int8_graph("mnist")
    assert target.is_registered
    assert not targets.resolve("portable").is_registered
    assert key_of_graph(graph, target, 1, "fast") is None
    planned = plan_program(graph, target)
    rows = emit_program(planned.program, planned.plan, target).rows
    assert call_names([r.step for r in rows], [r.kernel for r in rows], target) is None


@pytest.mark.skipif("x86_64" not in host().triple, reason="this is no x86-64")
def test_a_level_derives_from_one_of_a_processor() -> None:
    model = next(level for level in x86.LEVELS if targets.runs_here(level.name))
    assert isinstance(model.isa, X86)
    values = {field.name: getattr(model.isa, field.name) for field in fields(model.isa)}
    level = replace(model, name="own", isa=OwnX86(**values))
    qg.register_target(replace(x86.FAMILY, levels=(level,)))
    assert_equal_outputs(qg.compile(int8_graph("mnist"), target="own", num_threads=1), "mnist")

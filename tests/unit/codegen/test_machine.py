"""Measured costs of this machine: stored under its identity, checked when read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quantglow.codegen.llvm import machine, targets
from quantglow.codegen.llvm import machine as host
from quantglow.codegen.llvm.cache import ENVIRONMENT
from quantglow.codegen.llvm.isa.costs import Core
from quantglow.codegen.llvm.isa.x86.levels import ICE_LAKE
from quantglow.codegen.llvm.targets import resolve

CORE = Core(issue=3.5, latency=7.0, finish=(0.5, 1.0, 2.0), large_pages=True)
CPUINFO = "processor\t: 0\nvendor_id\t: V\ncpu family\t: 6\nmodel\t\t: {model}\nflags\t\t: sse2\n\n"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a processor of this system's description."""
    monkeypatch.setenv(ENVIRONMENT, str(tmp_path / "cache"))
    described(tmp_path, monkeypatch)
    return tmp_path / "cache"


def described(folder: Path, monkeypatch: pytest.MonkeyPatch, model: int = 1) -> None:
    (folder / "cpuinfo").write_text(CPUINFO.format(model=model))
    monkeypatch.setattr(host, "CPUINFO", folder / "cpuinfo")


def kept(core: Core = CORE, level: str = "a") -> Path:
    path = machine.keep_core(level, core, {})
    assert path is not None
    return path


@pytest.mark.parametrize("core", [CORE, Core(), ICE_LAKE])
def test_a_core_is_read_as_it_was_written(core: Core) -> None:
    kept(core)
    assert machine.read_core("a") == core


def test_each_level_has_a_core_of_its_own() -> None:
    kept(CORE, "a")
    kept(ICE_LAKE, "b")
    assert (machine.read_core("a"), machine.read_core("b")) == (CORE, ICE_LAKE)
    assert machine.read_core("c") is None


def test_another_processor_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept()
    described(tmp_path, monkeypatch, model=2)
    assert machine.read_core("a") is None


def test_another_cache_is_another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collected = []
    for size in ("32K", "48K"):
        folder = tmp_path / size / "index0"
        folder.mkdir(parents=True)
        for name, value in (("level", "1"), ("type", "Data"), ("size", size)):
            (folder / name).write_text(value + "\n")
        monkeypatch.setattr(machine, "CACHES", tmp_path / size)
        collected.append(machine.machine_identity())
    assert collected[0] != collected[1]


def changed(path: Path, **costs: Any) -> None:
    """Other costs in a file, with a hash that fits them."""
    data = json.loads(path.read_text())
    data["cores"]["a"] |= costs
    del data["sha256"]
    path.write_text(json.dumps({**data, "sha256": machine.short_hash(data)}))


@pytest.mark.parametrize("content", ["", "{", "[]", "[" * 100_000, "{}", '{"sha256": 1}'])
def test_a_damaged_file_is_not_used(content: str) -> None:
    kept().write_text(content)
    with pytest.warns(UserWarning, match=r"not used(.|\n)*Remedy: quantglow tune --machine"):
        assert machine.read_core("a") is None


@pytest.mark.parametrize(
    "costs",
    [
        {"latency": -1},
        {"latency": "7"},
        {"latency": float("nan")},
        {"issue": 0},
        {"issue": 1e9},
        {"finish": [1, 2]},
        {"finish": None},
        {"large_pages": 1},
        {"weights": True},
    ],
    ids=str,
)
def test_costs_that_no_processor_has_are_not_used(costs: dict[str, Any]) -> None:
    changed(kept(), **costs)
    with pytest.warns(UserWarning, match="not used"):
        assert machine.read_core("a") is None


def test_a_file_of_another_machine_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = kept()
    described(tmp_path, monkeypatch, model=2)
    path.rename(path.with_name(f"{machine.machine_identity()}.json"))
    with pytest.warns(UserWarning, match="it is of another machine"):
        assert machine.read_core("a") is None


def test_a_damaged_file_is_replaced() -> None:
    kept().write_text("{")
    kept(ICE_LAKE)
    assert machine.read_core("a") == ICE_LAKE


def test_code_for_files_is_made_for_the_same_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept()
    machine.copy_machine(tmp_path / "other")
    monkeypatch.setenv(ENVIRONMENT, str(tmp_path / "other"))
    assert machine.read_core("a") == CORE


def test_the_native_target_has_the_measured_core(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.undo()
    monkeypatch.setenv(ENVIRONMENT, str(tmp_path))
    resolve.cache_clear()
    listed = resolve("native")
    kept(CORE, listed.name)
    resolve.cache_clear()
    measured = resolve("native")
    resolve.cache_clear()
    assert measured == replace(listed, core=CORE) and measured.key != listed.key
    assert targets.level_target(listed.name).core == Core()

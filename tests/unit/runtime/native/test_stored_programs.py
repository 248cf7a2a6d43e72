"""Programs that an earlier process compiled are read, compute the same bytes, and damage to their
files does no harm."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantglow as qg
from quantglow.codegen.llvm.cache import MAGIC, seal
from quantglow.evaluation.call_times import profile_calls
from quantglow.memory import planning
from quantglow.runtime.native.program_store import DAMAGED, from_json, to_json
from quantglow.runtime.shapes import general_planning
from tests.support.free_network import SHAPES, free_model, image
from tests.support.small_network import small_model
from tests.support.stored_programs import forget, run_shapes, run_small

HEADER = len(MAGIC) + 32


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache, in a process that keeps programs and knows no kernel yet."""
    monkeypatch.setenv("QUANTGLOW_VERIFY", "0")
    monkeypatch.setenv("QUANTGLOW_CACHE_DIR", str(tmp_path))
    forget(monkeypatch)
    return tmp_path / "programs"


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The graphs that were planned."""
    collected: list[object] = []
    plan = planning.plan_program

    def recorded(graph: Any, *arguments: Any, **named: Any) -> Any:
        collected.append(graph)
        return plan(graph, *arguments, **named)

    monkeypatch.setattr(planning, "plan_program", recorded)
    monkeypatch.setattr(general_planning, "plan_program", recorded)
    return collected


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A model with free dimensions; its file has a graph for all shapes."""
    compiled = qg.compile(free_model(), num_threads=1)
    compiled.run(None, {"x": image(SHAPES[0])})
    compiled.save(tmp_path / "free.qgm")
    return tmp_path / "free.qgm"


def test_a_program_that_was_compiled_before_is_not_planned_again(
    folder: Path, planned: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = run_small()
    assert planned
    planned.clear()
    forget(monkeypatch)
    assert run_small() == before
    assert not planned


@pytest.mark.slow
def test_programs_for_all_shapes_are_not_planned_again(
    folder: Path, saved: Path, planned: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = run_shapes(saved)
    planned.clear()
    forget(monkeypatch)
    assert run_shapes(saved) == before
    assert not planned


@pytest.mark.slow
def test_a_shape_with_a_program_of_its_own_is_not_imported_again(
    folder: Path, saved: Path, planned: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = [(1, 3, 1, 1), (1, 3, 4, 4)]
    loaded = qg.load(saved, num_threads=1)
    before = [loaded.run(None, {"x": image(shape)})[0].tobytes() for shape in shapes]
    planned.clear()
    forget(monkeypatch)
    monkeypatch.setattr("quantglow.api.models.families.FamilyOrigin.graph_at", None)
    again = qg.load(saved, num_threads=1)
    results = [again.run(None, {"x": image(shape)})[0].tobytes() for shape in shapes]
    assert (results, planned) == (before, [])
    ours = [served.shapes for served in again.report.programs]
    assert "x [1, 3, 1, 1]" in ours


@pytest.mark.slow
def test_a_model_whose_first_program_was_read_is_as_one_whose_was_compiled(
    folder: Path, planned: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    qg.compile(free_model(), num_threads=1).save(tmp_path / "unused.qgm")

    def used(name: str) -> tuple[object, ...]:
        model: Any = qg.load(tmp_path / "unused.qgm", num_threads=1)
        results = [model.run(None, {"x": image(shape)})[0].tobytes() for shape in SHAPES]
        model.save(tmp_path / name)
        again: Any = qg.load(tmp_path / name, num_threads=1)
        assert again.graph.inputs[0].type.shape == SHAPES[0]
        ours = model.graph.inputs[0].type.shape, model.build.target
        return *ours, model.has_independent_samples(), results

    before = used("compiled.qgm")
    planned.clear()
    forget(monkeypatch)
    assert used("read.qgm") == before
    assert not planned


def test_the_report_of_a_program_that_was_read_is_that_of_a_compiled_one(
    folder: Path, planned: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = qg.compile(small_model(), num_threads=1)
    planned.clear()
    second = qg.compile(small_model(), num_threads=1)
    assert second.report.memory == first.report.memory
    assert not planned
    assert str(second.build.programs[0].program) == str(first.build.programs[0].program)


@pytest.mark.slow
def test_calls_of_a_program_that_was_read_are_timed(
    folder: Path, planned: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def named_calls() -> list[str]:
        compiled = qg.compile(small_model(), num_threads=1)
        (info,) = compiled.get_inputs()
        report = profile_calls(compiled.build, {info.name: np.zeros(info.shape, np.float32)}, 1)
        return [call.name for call in report.calls]

    before = named_calls()
    planned.clear()
    forget(monkeypatch)
    assert (named_calls(), planned) == (before, [])


def altered(content: bytes) -> Iterator[bytes]:
    """Damaged entries: shorter ones, and ones with other bytes."""
    rng = random.Random(1)
    for end in (0, HEADER, len(content) // 2, len(content) - 1):
        yield content[:end]
    for _ in range(4):
        at = rng.randrange(len(content))
        yield content[:at] + bytes([content[at] ^ 255]) + content[at + 1 :]


@pytest.mark.parametrize("number", range(8))
def test_damaged_entries_are_compiled_again(
    folder: Path, planned: list[object], number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = run_small()
    (entry,) = folder.glob("program_*")
    content = entry.read_bytes()
    entry.write_bytes(list(altered(content))[number])
    planned.clear()
    forget(monkeypatch)
    assert run_small() == before
    assert planned
    assert entry.read_bytes() == content


def change_count(head: dict[str, Any]) -> None:
    head["table"]["count"] = 10**6


def change_slot(head: dict[str, Any]) -> None:
    head["table"]["slots"][0] = -1


def change_lines(head: dict[str, Any]) -> None:
    head["table"]["numbers"][1] = ["__import__('os').abort()"]


def change_constants(head: dict[str, Any]) -> None:
    head["constants"][0][0] += 10**6


def change_kernels(head: dict[str, Any]) -> None:
    head["symbols"] = ["no kernel" for _ in head["symbols"]]


def change_pieces(head: dict[str, Any]) -> None:
    head["facts"] = {"pieces": 0}


@pytest.mark.parametrize(
    "change",
    [
        change_count,
        change_slot,
        change_lines,
        change_constants,
        change_kernels,
        change_pieces,
        dict.clear,
    ],
)
def test_entries_with_other_contents_are_compiled_again(
    folder: Path,
    planned: list[object],
    change: Callable[[dict[str, Any]], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = run_small()
    (entry,) = folder.glob("program_*")
    text, _, small = entry.read_bytes()[HEADER:].partition(b"\n")
    head = json.loads(text)
    change(head)
    entry.write_bytes(seal(entry.stem, json.dumps(head).encode() + b"\n" + small))
    planned.clear()
    forget(monkeypatch)
    assert run_small() == before
    assert planned


def test_a_missing_kernel_is_compiled_again(
    folder: Path, planned: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = run_small()
    for file in (folder.parent / "kernels").iterdir():
        file.unlink()
    planned.clear()
    forget(monkeypatch)
    assert run_small() == before
    assert planned


def test_a_cache_that_cannot_be_written_is_no_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("QUANTGLOW_VERIFY", "0")
    monkeypatch.setenv("QUANTGLOW_CACHE_DIR", str(tmp_path / "file"))
    forget(monkeypatch)
    assert run_small() == run_small()


def test_other_weights_are_another_program(folder: Path, planned: list[object]) -> None:
    model = small_model()
    qg.compile(model, num_threads=1)
    planned.clear()
    raw = bytearray(model.graph.initializer[0].raw_data)
    raw[0] ^= 1
    model.graph.initializer[0].raw_data = bytes(raw)
    qg.compile(model, num_threads=1)
    assert planned


def mutated(value: Any, rng: random.Random) -> Any:
    """The value with one part exchanged."""
    if isinstance(value, dict):
        key = rng.choice(list(value))
        return {**value, key: mutated(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.9:
        at = rng.randrange(len(value))
        return [*value[:at], mutated(value[at], rng), *value[at + 1 :]]
    return rng.choice([None, -1, 0, 1, 2**31, 2**70, 1.5, "", "v0", "s0*2", [], [[]], {}, True])


@pytest.mark.slow
def test_altered_tables_are_read_or_refused(folder: Path) -> None:
    compiled = qg.compile(free_model(), num_threads=1)
    for shape in SHAPES:
        compiled.run(None, {"x": image(shape)})
    executable: Any = compiled.specialisations.at({"x": image(SHAPES[1])}).build.executable
    text, rng = json.dumps(to_json(executable.table)), random.Random(2)
    assert json.dumps(to_json(from_json(json.loads(text), executable.target))) == text
    refused = 0
    for _ in range(2000):
        try:
            from_json(mutated(json.loads(text), rng), executable.target)
        except DAMAGED:
            refused += 1
    assert refused > 1000

"""The instruction set outside of the package gives the integers of the others."""

from __future__ import annotations

from pathlib import Path

import pytest

import quantglow as qg
from quantglow.codegen.llvm import targets
from quantglow.codegen.llvm.emission import emit_program
from quantglow.memory.planning import plan_program
from tests.support.examples import (
    BATCHES,
    assert_equal_outputs,
    count_lines,
    int8_graph,
    load_example,
    run_example,
)


@pytest.fixture(autouse=True)
def level(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of the example's level, registered for a test."""
    monkeypatch.setattr(targets, "_LEVELS", dict(targets._LEVELS))
    example = load_example("own_level")
    example.register()
    name = example.LEVEL.name
    assert isinstance(name, str)
    return name


def test_the_example_is_short() -> None:
    assert count_lines("own_level") < 150


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(("name", "batch"), BATCHES)
def test_the_level_computes_the_integers_of_the_interpreter(
    name: str, batch: int, threads: int, level: str
) -> None:
    graph = int8_graph(name, batch)
    for target in (level, "portable"):
        model = qg.compile(graph, target=target, num_threads=threads)
        assert_equal_outputs(model, name, batch)


def test_it_runs_as_a_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_example("own_level", tmp_path)
    assert capsys.readouterr().out.startswith("shifted")


def test_its_kernels_have_its_operation(level: str) -> None:
    texts = []
    for name in (level, "portable"):
        target = targets.resolve(name)
        planned = plan_program(int8_graph("mnist"), target)
        texts.append("".join(emit_program(planned.program, planned.plan, target).texts))
    ours, others = (text.count("ashr <4 x i32>") for text in texts)
    assert ours > others


def test_a_saved_model_is_loaded_for_it(level: str, tmp_path: Path) -> None:
    model = qg.compile(int8_graph("mnist"), target=level, num_threads=1)
    model.save(tmp_path / "model.qgm")
    loaded = qg.load(tmp_path / "model.qgm", target=level, num_threads=1)
    assert isinstance(loaded, qg.CompiledModel)
    assert loaded.build.target == level
    assert_equal_outputs(loaded, "mnist")


def test_a_file_includes_no_code_for_it(level: str, tmp_path: Path) -> None:
    model = qg.compile(int8_graph("mnist"), target=level, num_threads=1)
    with pytest.raises(qg.OptionError, match=f"{level} is registered by this process"):
        model.save(tmp_path / "model.qgm", include_code=[level])

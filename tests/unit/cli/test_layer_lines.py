"""``--layer``: lines about some layers, with long tuples cut."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import quantglow as qg
from quantglow.cli.inspect import lines_about, names_in, shorten
from quantglow.cli.main import main
from tests.support.small_network import small_model, small_samples


def test_a_layer_brings_its_constants_and_nothing_else() -> None:
    options = {"num_threads": 1, "progress": False, "effort": "fast"}
    graph = qg.quantize_and_compile(small_model(), small_samples(), **options).graph
    name = next(node.name for node in graph.compute_nodes() if node.op == "Conv")
    lines = lines_about(str(graph), name).splitlines()
    assert lines and all(line.startswith((f"'{name}'", f"'{name}:")) for line in lines)
    assert any(" = Conv(" in line for line in lines)
    assert any(" = Constant(" in line for line in lines)
    assert len(lines) < len(str(graph).splitlines()) - 1


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("'a:w': f32[2] = Constant(value=1)", ["a:w"]),
        ("  3  Conv @out %y[0:4,1]: u8<1,0>[2], @in x=%x:q: u8 {name='y'}", ["y", "x:q", "y"]),
        ("  4  dealloc %/10/Relu_output_0:pad", ["/10/Relu_output_0:pad"]),
        ("program", []),
    ],
)
def test_names_are_those_of_nodes_buffers_and_instructions(line: str, names: list[str]) -> None:
    assert names_in(line) == names


def test_long_tuples_are_cut_and_short_ones_are_not() -> None:
    many = ", ".join(f"0.{i}" for i in range(16))
    assert shorten(f"ElementType('i8', ({many}))") == "ElementType('i8', (0.0, 0.1, … 16 in all))"
    assert shorten("pads=(1, 1, 1, 1), (1, 2, 3, 4, 5)") == "pads=(1, 1, 1, 1), (1, 2, 3, 4, 5)"


def test_the_command_shows_lines_and_names_the_nearest_layer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(small_model(), tmp_path / "net.onnx")
    line = ["inspect", str(tmp_path / "net.onnx"), "--layer"]
    assert main([*line, "score*"]) == 0
    captured = capsys.readouterr().out.splitlines()
    assert captured and all(text.startswith("'score") for text in captured)
    assert main([*line, "scoers", "--stage", "program"]) == 1
    assert "did you mean scores" in capsys.readouterr().err
    assert main([*line, "scores", "--stage", "report"]) == 1
    assert "for graphs and programs" in capsys.readouterr().err

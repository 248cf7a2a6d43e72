"""``quantglow opt``: passes over texts, from files and stdin, and one message for each fault."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import onnx
import pytest

from quantglow.cli.main import main
from quantglow.cli.opt import GRAPH_PASSES, NAMED_PROGRAM_PASSES
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input
from quantglow.ir.graph.text import arrays_written_out, parse_graph, print_with_arrays
from quantglow.ir.ops import Abs, Gemm, Relu, Reshape
from quantglow.ir.program.program import Program
from quantglow.ir.program.text import parse_program
from quantglow.ir.types import f32
from quantglow.transforms.lowering import lower
from quantglow.transforms.program.generate import generate
from tests.support.small_network import small_model, small_samples


def small_graph() -> Graph:
    """Relu(Relu(Gemm(Reshape(Reshape(x)))))"""
    x = Input(name="x", tensor=f32(2, 3, 1))
    flat = Reshape(name="a", x=Reshape(name="b", x=x, shape=(6,)), shape=(2, 3))
    w = Constant(name="w", value=np.arange(12, dtype=np.float32).reshape(3, 4))
    y = Relu(name="z", x=Relu(name="y", x=Gemm(name="g", x=flat, w=w)))
    return Graph((x,), (("out", y),))


def small_program() -> Program:
    """Gemm(Abs(Gemm(x))), whose Abs may take over the buffer of its operand."""
    x = Input(name="x", tensor=f32(2, 3))
    w = Constant(name="w", value=np.ones((3, 3), np.float32))
    inner = Abs(name="a", x=Gemm(name="g", x=x, w=w))
    return generate(lower(Graph((x,), (("out", Gemm(name="h", x=inner, w=w)),))))


TEXT = print_with_arrays(small_graph(), 64)
PROGRAM = small_program().text(arrays_written_out(64))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "graph.txt"
    path.write_text(TEXT)
    return path


def printed(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Output of ``quantglow opt`` on stdout if it succeeds."""
    assert main(["opt", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def message(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Message of ``quantglow opt`` if it fails."""
    assert main(["opt", *map(str, arguments)]) == 1
    shown = capsys.readouterr()
    assert "Traceback" not in shown.err
    return shown.err


def test_passes_run_in_the_order_given(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    actual = printed(capsys, file, "-p", "merge-reshapes", "--pass", "merge-clips")
    expected = GRAPH_PASSES["merge-clips"](GRAPH_PASSES["merge-reshapes"](small_graph()))
    assert actual == print_with_arrays(expected, 64)
    assert actual != TEXT


def test_a_printed_graph_is_read_again(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert print_with_arrays(parse_graph(printed(capsys, file), {}), 64) == TEXT


@pytest.mark.parametrize("place", [["-"], []])
def test_stdin_is_read_by_default(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], place: list[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(TEXT))
    assert "Reshape" in printed(capsys, *place, "--verify", "-p", "merge-reshapes")


def test_programs_are_read_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "program.txt"
    path.write_text(PROGRAM)
    actual = parse_program(printed(capsys, path, "-p", "share-in-place"), {})
    assert len(actual.buffers) < len(parse_program(PROGRAM, {}).buffers)


def test_a_model_is_imported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(small_model().SerializeToString())
    assert printed(capsys, path, "-p", "optimize", "--max-elements", 10**6).startswith("graph ")


def test_large_arrays_become_marks(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = printed(capsys, file, "--max-elements", 11)
    assert "ArrayMark('f32', (3, 4)" in shown


def test_the_list_has_every_pass_and_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line.split(maxsplit=1) for line in printed(capsys, "--list").splitlines()]
    named = {line[0]: line[1] for line in lines if len(line) == 2}
    assert named.keys() >= GRAPH_PASSES.keys() | NAMED_PROGRAM_PASSES.keys()


def test_reasons_of_passes_that_decline_are_shown(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUANTGLOW_DEBUG", "2")
    assert main(["opt", str(file), "-p", "fuse-activation"]) == 0
    assert "fuse-activation" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-p", "fold-batchnorm"], "no pass 'fold-batchnorm', did you mean 'fold-batch-norm'?"),
        (["-p", "xyz"], "there is no pass 'xyz'. `quantglow opt --list` names all"),
        (["-p", "share-in-place"], "is over programs or graphs, whichever the text is not"),
        (["--max-elements", "-1"], "--max-elements must be at least 0"),
    ],
)
def test_wrong_options_are_one_message(
    file: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert said in message(capsys, file, *arguments)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "this is not the text of a graph"),
        (b"\xff\xfe", "cannot read"),
        (b"program\nnothing\n", "line 2: not a line of a program"),
        (TEXT.replace("Gemm(", "Gem(").encode(), "there is no operator 'Gem'"),
        (TEXT.replace("Dense('f32', (3, 4)", "Dense('f32', (3, 5)").encode(), "12 values for"),
        (str(small_graph()).encode(), "opt MODEL --max-elements N"),
        (str(small_program()).encode(), "program.text(arrays_written_out(N))"),
    ],
)
def test_a_bad_text_is_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, said: str
) -> None:
    (tmp_path / "bad.txt").write_bytes(content)
    assert said in message(capsys, tmp_path / "bad.txt")


def test_a_model_printed_as_the_message_says_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, text = tmp_path / "net.onnx", tmp_path / "graph.txt"
    onnx.save(small_model(), model)
    text.write_text(printed(capsys, model, "--max-elements", 1))
    assert "print it" in message(capsys, text)
    text.write_text(printed(capsys, model, "--max-elements", 10**6))
    assert printed(capsys, text, "--max-elements", 10**6) == text.read_text()


def test_a_missing_file_is_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "No such file" in message(capsys, tmp_path / "none.txt")


def test_a_model_that_is_compiled_rightly_has_no_part(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file, samples = tmp_path / "m.onnx", tmp_path / "s.npz"
    onnx.save(small_model(), file)
    np.savez(samples, **{small_model().graph.input[0].name: small_samples(1)[0]})
    actual = printed(capsys, file, "--bisect", "--calibration-data", samples)
    assert actual == "import, passes and machine code give the results of the reference\n"
    assert "--calibration-data" in message(capsys, file, "--bisect")

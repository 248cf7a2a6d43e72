"""Commands on models with free dimensions: data, files and flags give the shapes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import quantglow as qg
from quantglow.cli.bench import draw_feeds
from quantglow.cli.main import main
from tests.support.free_network import free_model, image

SHAPE = (1, 3, 8, 12)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """free.onnx, samples.npz and free.qgm, quantized with them."""
    folder = tmp_path_factory.mktemp("free")
    onnx.save(free_model(), folder / "free.onnx")
    np.savez(folder / "samples.npz", x=np.concatenate([image(SHAPE, seed) for seed in range(3)]))
    line = ["quantize", "free.onnx", "--calibration-data", "samples.npz", "--output", "free.qgm"]
    assert main([str(folder / word) if "." in word else word for word in line]) == 0
    return folder


@pytest.mark.slow
def test_compile_leaves_dimensions_free(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", str(folder / "free.onnx"), "--output", str(folder / "float.qgm")]) == 0
    assert "it is compiled on first use" in capsys.readouterr().out
    (scores, _) = qg.load(folder / "float.qgm", num_threads=1).run(None, {"x": image(SHAPE, 1)})
    assert scores.shape == (1, 4)


@pytest.mark.slow_variants
@pytest.mark.parametrize("name", ["free.onnx", "free.qgm"])
def test_bench_takes_the_shapes_that_are_given(folder: Path, name: str) -> None:
    words = ["--seconds", "0.01", "--num-threads", "1", "--input-shapes", "x:2,3,5,9"]
    assert main(["bench", str(folder / name), *words]) == 0


def test_random_inputs_have_the_shapes_that_were_compiled_first(folder: Path) -> None:
    loaded = qg.load(folder / "free.qgm", num_threads=1)
    assert draw_feeds(loaded, {})["x"].shape == SHAPE
    assert draw_feeds(loaded, {"x": (2, 3, 5, 9)})["x"].shape == (2, 3, 5, 9)
    unused = qg.compile(str(folder / "free.onnx"), num_threads=1)
    assert draw_feeds(unused, {})["x"].shape == (1, 3, 1, 1)


def test_shapes_that_do_not_fit_are_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", str(folder / "free.qgm"), "--input-shapes", "x:1,2,5,9"]) == 1
    assert "--input-shapes" in capsys.readouterr().err


@pytest.mark.parametrize("dims", ["²,8", "", "1,,2", "-1", "1.5", "9" * 5000, "x"])
def test_shapes_that_are_no_numbers_are_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], dims: str
) -> None:
    assert main(["bench", str(folder / "free.onnx"), "--input-shapes", f"x:{dims}"]) == 1
    assert "--input-shapes takes NAME:D,D" in capsys.readouterr().err


def test_shapes_of_other_inputs_are_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", str(folder / "free.qgm"), "--input-shapes", "z:1"]) == 1
    assert "--input-shapes names ['z']" in capsys.readouterr().err


@pytest.mark.parametrize(("stage", "expected"), [("int8", "Quantize("), ("program", "@out")])
def test_samples_tell_the_shapes_of_an_inspected_model(
    folder: Path, capsys: pytest.CaptureFixture[str], stage: str, expected: str
) -> None:
    words = ["--calibration-data", str(folder / "samples.npz"), "--stage", stage]
    assert main(["inspect", str(folder / "free.onnx"), *words]) == 0
    assert expected in capsys.readouterr().out


def test_the_inspected_graph_is_the_one_that_quantize_saves(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--calibration-data", str(folder / "samples.npz"), "--stage", "int8"]
    assert main(["inspect", str(folder / "free.onnx"), *words]) == 0
    assert capsys.readouterr().out.strip() == str(qg.load(folder / "free.qgm").graph).strip()

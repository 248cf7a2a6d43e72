"""Steps as words of the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import quantglow as qg
from quantglow import steps
from quantglow.cli.main import main
from quantglow.cli.steps import list_steps
from tests.support.small_network import small_model

BEFORE = "--before element-type:uint8 layout:NHWC rescale:1/255 normalize:0.5,0.4,0.25,0.2"
AFTER = "--after scores=softmax scores=topk:2"


@pytest.mark.parametrize(
    ("word", "step"),
    [
        ("element-type:uint8", steps.ElementType("uint8")),
        ("layout:NHWC", steps.Layout("NHWC")),
        ("layout:NHWC,NHWC", steps.Layout("NHWC", "NHWC")),
        ("resize:4,6", steps.Resize(4, 6)),
        ("resize:4,6,nearest", steps.Resize(4, 6, "nearest")),
        ("resize:4,6,antialias", steps.Resize(4, 6, antialias=True)),
        ("rescale:1/4", steps.Rescale(0.25)),
        ("normalize:1,2", steps.Normalize(1, 2)),
        ("normalize:1,2,3,4", steps.Normalize((1, 2), (3, 4))),
        ("reverse-channels", steps.ReverseChannels()),
        ("softmax", steps.Softmax()),
        ("softmax:1", steps.Softmax(1)),
        ("sigmoid", steps.Sigmoid()),
        ("topk:5", steps.TopK(5)),
        ("argmax:1", steps.ArgMax(1)),
    ],
)
def test_words_are_steps(word: str, step: steps.Step) -> None:
    assert list_steps("before", [word]) == [step]
    assert list_steps("before", [f"a=b={word}"]) == {"a=b": [step]}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["resise:1,2"], "did you mean 'resize'"),
        (["resize:1"], "arguments that the step does not take"),
        (["rescale:1/0"], "arguments that the step does not take"),
        (["rescale:1e999999999"], "Rescale factor must be"),
        (["rescale:nan"], "Rescale factor must be"),
        (["normalize:1e999,1"], "Normalize mean must be"),
        (["normalize:1,2,3"], "arguments that the step does not take"),
        (["topk:0"], "TopK k must be at least 1"),
        (["sigmoid", "y=sigmoid"], "before the first name"),
    ],
)
def test_words_without_sense_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(qg.OptionError, match=message):
        list_steps("after", words)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with net.onnx, images.npz of bytes, and one.npz."""
    monkeypatch.chdir(tmp_path)
    onnx.save(small_model(), "net.onnx")
    x = np.random.default_rng(5).integers(0, 256, (6, 6, 6, 2)).astype(np.uint8)
    np.savez("images.npz", x=x)
    np.savez("one.npz", x=x[:1])
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_a_model_with_steps_is_profiled_quantized_and_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    inputs = f"{BEFORE} {AFTER}".split()
    data = ["net.onnx", "--calibration-data", "images.npz", *inputs]
    assert main(["profile", *data, "--output", "p.npz"]) == 0
    data[2] = "p.npz"
    assert main(["quantize", *data, "--output", "net.qgm", "--num-threads", "1"]) == 0
    assert main(["run", "net.qgm", "--inputs", "one.npz", "--output", "out.npz"]) == 0
    with np.load("out.npz", allow_pickle=False) as actual:
        assert actual["scores_indices"].shape == (1, 2)
    assert main(["compile", "net.qgm", *inputs, "--output", "other.qgm"]) == 1
    assert "a saved model has its steps" in capsys.readouterr().err


DATA = "--calibration-data images.npz"
QUICK = "--seconds 0.05 --num-threads 1"


@pytest.mark.slow_variants
@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (f"bundle net.onnx {DATA} --effort fast --output folder", "uint8_t"),
        ("bundle net.onnx --output folder", "uint8_t"),
        pytest.param(
            f"compare net.onnx {DATA} --quantizers onnxruntime-minmax {QUICK}",
            "closer to float",
            marks=pytest.mark.slow,
        ),
        ("inspect net.onnx", "'x:Cast'"),
        ("inspect net.onnx --stage memory", "x:model"),
        (f"inspect net.onnx {DATA} --effort fast --stage int8", "'x:model:shifted:q'"),
        (f"inspect net.onnx {DATA} --effort fast --stage report", "scores:Softmax"),
        ("opt net.onnx", "'x:Cast'"),
        (f"opt net.onnx --bisect {DATA}", "give the results of the reference"),
        ("run net.onnx --inputs one.npz", "scores_indices"),
        (f"bench net.onnx {QUICK}", "x: uint8[1, 6, 6, 2]"),
        pytest.param(
            "tune net.onnx --max-minutes 0.01", "kernels measured", marks=pytest.mark.slow
        ),
    ],
)
@pytest.mark.usefixtures("folder")
def test_every_command_takes_steps(
    capsys: pytest.CaptureFixture[str], command: str, shown: str
) -> None:
    assert main([*command.split(), *f"{BEFORE} {AFTER}".split()]) == 0
    assert shown in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
def test_other_runtimes_get_the_steps_of_a_saved_model(capsys: pytest.CaptureFixture[str]) -> None:
    inputs = f"{BEFORE} {AFTER}"
    assert main(f"compile net.onnx {inputs} --output net.qgm --num-threads 1".split()) == 0
    capsys.readouterr()
    line = f"bench net.qgm --onnx net.onnx --compare onnxruntime {QUICK} --json {inputs}"
    assert main(line.split()) == 0
    peer = json.loads(capsys.readouterr().out)["compared"]["runtimes"][1]
    assert peer["median_seconds"] > 0


@pytest.mark.parametrize(
    "command", ["inspect net.qgm", "bundle net.qgm --output folder", "opt graph.txt"]
)
@pytest.mark.usefixtures("folder")
def test_saved_models_and_texts_have_their_steps(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert main([*command.split(), *BEFORE.split()]) == 1
    assert "--before and --after are for ONNX models" in capsys.readouterr().err

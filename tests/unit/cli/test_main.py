"""The command line: every command does its work, every error is one message."""

from __future__ import annotations

import inspect
import json
import os
import re
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import onnx
import onnxruntime
import pytest

import quantglow as qg
from quantglow.cli import commands
from quantglow.cli.arguments import parse_config
from quantglow.cli.commands import MEANWHILE
from quantglow.cli.main import COMMANDS, main, parser
from quantglow.evaluation import latencies as busy
from quantglow.evaluation.baselines import latency as peers
from quantglow.evaluation.latencies import measure_loaded, medians
from quantglow.evaluation.metrics import sqnr_db
from quantglow.report import Report
from quantglow.runtime.shapes import background as meanwhile
from tests.support.combinations import mark_slow
from tests.support.free_network import free_model, image, wide_model
from tests.support.small_network import small_model, small_samples


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """net.onnx, free.onnx, samples.npz, one.npz; for errors plain.npy, empty.npz, folder.npz."""
    folder = tmp_path_factory.mktemp("cli")
    onnx.save(small_model(), folder / "net.onnx")
    onnx.save(free_model(), folder / "free.onnx")
    np.savez(folder / "samples.npz", x=np.concatenate(small_samples()))
    np.savez(folder / "one.npz", x=small_samples()[0])
    np.save(folder / "plain.npy", small_samples()[0])
    (folder / "empty.npz").touch()
    (folder / "folder.npz").mkdir()
    return folder


def run(folder: Path, line: str) -> int:
    """The exit code of a command line in which names with a dot are files of ``folder``."""
    words = [str(folder / w) if "." in w and not w.startswith("-") else w for w in line.split()]
    return main(words)


def test_profile_writes_a_profile(folder: Path) -> None:
    run(folder, "profile net.onnx --calibration-data samples.npz --output ranges.npz")
    assert qg.Profile.load(folder / "ranges.npz").samples == 4


@pytest.mark.slow
def test_quantize_writes_a_model_and_prints_the_report(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(folder, "quantize net.onnx --calibration-data samples.npz --output int8.qgm")
    captured = capsys.readouterr().out
    assert "Outputs against onnxruntime" in captured and "time: prepare" not in captured
    _, accuracy, size, share, speed = captured.splitlines()[:5]
    step = captured.splitlines()[-1]
    assert "on 4 sample(s)" in accuracy and "times smaller" in size
    assert "of multiply-accumulates" in share and "onnxruntime's float" in speed
    assert step.startswith("Next: quantglow bench ") and "--compare onnxruntime" in step
    assert qg.load(folder / "int8.qgm").report.outputs


def test_quantize_prints_every_layer_if_asked(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = "quantize net.onnx --calibration-data samples.npz --output int8.qgm --effort fast"
    run(folder, f"{line} --no-measure-latency --all-layers")
    captured = capsys.readouterr().out
    assert (
        "Their codes" in captured
        and "time: prepare" in captured
        and "Speed: not measured" in captured
    )


@pytest.mark.slow
def test_quantize_prints_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = "quantize net.onnx --calibration-data samples.npz --output int8.qgm --effort fast"
    run(folder, f"{line} --json")
    data = json.loads(capsys.readouterr().out)
    sizes = data["summary"]["weights"]
    assert data["nbytes"] == (folder / "int8.qgm").stat().st_size
    assert data["summary"]["latency"]["float_seconds"] > 0
    assert sizes["float_nbytes"] > sizes["quantized_nbytes"]
    assert Report.from_json(data["report"]).outputs


@pytest.mark.slow
def test_a_model_that_is_far_off_is_sent_to_debug(folder: Path) -> None:
    report = qg.quantize_and_compile(folder / "net.onnx", folder / "samples.npz").report
    off = replace(report, outputs=tuple(replace(o, sqnr_db=5.0) for o in report.outputs))
    line = "quantize a.onnx --calibration-data b.npz --input-shapes x:1,2"
    options = parser().parse_args(line.split())
    assert commands.next_command(off, options, "c.qgm") == (
        "quantglow debug a.onnx --calibration-data b.npz --input-shapes x:1,2 --output c.html"
    )
    assert "not usable" in str(off) and "Look at these layers: " in str(off)


@pytest.mark.slow_variants
@pytest.mark.parametrize("data", ["", "--calibration-data samples.npz"])
def test_quantize_packs_weights(
    folder: Path, data: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = "--weights int4 --group-size 32 --activations float --no-symmetric-weights"
    assert run(folder, f"quantize net.onnx {data} {options} --output packed.qgm") == 0
    assert "int4 weights, float activations" in capsys.readouterr().out
    assert qg.load(folder / "packed.qgm").report.layers


def test_quantize_needs_data_without_weights(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(folder, "quantize net.onnx --output none.qgm") == 1
    assert "--calibration-data is missing" in capsys.readouterr().err


@pytest.mark.slow
def test_quantize_holds_a_contract(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = "quantize net.onnx --calibration-data samples.npz --output exact.qgm --max-drop"
    assert run(folder, f"{line} 1e-4 --max-minutes 5") == 0
    shown = capsys.readouterr().out
    assert "accuracy control: drop" in shown
    assert "Precision overrides by accuracy control" in shown


def test_the_best_model_of_a_broken_contract_is_saved(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = "quantize net.onnx --calibration-data samples.npz --max-minutes 1e-9 --max-drop 1e-9"
    assert run(folder, f"{line} --output best.qgm") == 1
    assert "the time is up" in capsys.readouterr().err
    assert qg.load(folder / "best.qgm").report.layers == ()


def test_a_model_with_free_dimensions_keeps_them(folder: Path) -> None:
    np.savez(folder / "tall.npz", x=image((4, 3, 9, 5)))
    np.savez(folder / "wide.npz", x=image((2, 3, 4, 13)))
    run(folder, "profile free.onnx --calibration-data tall.npz --output tall.profile.npz")
    run(folder, "quantize free.onnx --calibration-data tall.profile.npz --output free.qgm")
    assert run(folder, "run free.qgm --inputs wide.npz --output scores.npz") == 0
    with np.load(folder / "scores.npz") as actual:
        assert actual["scores"].shape == (2, 4)


@pytest.mark.slow
def test_quantize_writes_onnx_that_onnxruntime_runs(folder: Path) -> None:
    run(folder, "quantize net.onnx --calibration-data samples.npz --output int8.onnx")
    session = onnxruntime.InferenceSession(folder / "int8.onnx")
    scores, _ = session.run(None, {"x": small_samples()[0]})
    expected = qg.compile(folder / "net.onnx")(small_samples()[0])[0]
    assert sqnr_db(expected, scores) > 25


@pytest.mark.slow_variants
@pytest.mark.parametrize(
    "stage",
    mark_slow(
        ["imported", "optimized", "int8", "lowered", "memory", "report"], {"imported", "report"}
    ),
)
def test_inspect_shows_models_that_come_quantized(
    folder: Path, stage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run(folder, "quantize net.onnx --calibration-data samples.npz --output shown.onnx")
    capsys.readouterr()
    assert run(folder, f"inspect shown.onnx --stage {stage}") == 0
    assert capsys.readouterr().out.strip()


@pytest.mark.slow
def test_compile_and_run_give_the_outputs(folder: Path) -> None:
    run(folder, "compile net.onnx --output float.qgm --num-threads 1")
    run(folder, "run float.qgm --inputs one.npz --output result.npz")
    with np.load(folder / "result.npz") as actual:
        expected = qg.compile(folder / "net.onnx")(small_samples()[0])
        np.testing.assert_array_equal(actual["scores"], expected[0])


@pytest.mark.parametrize("name", ["found.json", "found.html"])
def test_debug_prints_and_writes(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    line = f"debug net.onnx --calibration-data samples.npz --samples 1 --output {name}"
    assert run(folder, line) == 0
    assert "Worst int8 layers" in capsys.readouterr().out
    assert "features" in (folder / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("flag", ["--measure-speed", "--no-measure-speed", ""])
def test_a_page_has_the_time_of_layers_unless_refused(folder: Path, flag: str) -> None:
    line = "debug net.onnx --calibration-data samples.npz --samples 1 --output timed.html"
    assert run(folder, f"{line} {flag}") == 0
    page = (folder / "timed.html").read_text(encoding="utf-8")
    assert ('"timeline":' in page) == (flag != "--no-measure-speed")
    assert "<h1>net.onnx</h1>" in page


def test_names_of_layers_stay_whole_where_there_is_no_terminal(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    name = "a_layer_of_a_network_with_a_name_of_many_words"
    model = small_model()
    for node in model.graph.node:
        node.output[:] = [name if o == "features" else o for o in node.output]
        node.input[:] = [name if i == "features" else i for i in node.input]
    model.graph.output[1].name = name
    onnx.save(model, folder / "long.onnx")
    run(folder, "debug long.onnx --calibration-data samples.npz --samples 1 --no-sensitivity")
    assert name in capsys.readouterr().out


def test_names_of_files_are_no_markup(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(folder, "compile net.onnx --output net[red].qgm")
    run(folder, "profile net.onnx --calibration-data samples.npz --output net[bold].npz")
    printed = capsys.readouterr().out.replace("\n", "")
    assert "net[red].qgm" in printed
    assert "net[bold].npz" in printed


def test_outputs_without_numbers_are_shown_and_saved(tmp_path: Path) -> None:
    nodes = [
        onnx.helper.make_node("NonZero", ["x"], ["where"]),
        onnx.helper.make_node("Identity", ["text"], ["same"]),
    ]
    inputs = [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [3])]
    inputs += [onnx.helper.make_tensor_value_info("text", onnx.TensorProto.STRING, [2])]
    outputs = [onnx.helper.make_tensor_value_info("where", onnx.TensorProto.INT64, [1, None])]
    outputs += [onnx.helper.make_tensor_value_info("same", onnx.TensorProto.STRING, [2])]
    graph = onnx.helper.make_graph(nodes, "texts", inputs, outputs)
    opsets = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets), tmp_path / "texts.onnx")
    np.savez(tmp_path / "in.npz", x=np.zeros(3, np.float32), text=np.array(["a", "b"]))
    assert run(tmp_path, "run texts.onnx --inputs in.npz --output out.npz") == 0
    with np.load(tmp_path / "out.npz", allow_pickle=False) as actual:
        assert (actual["where"].shape, actual["same"].tolist()) == ((1, 0), ["a", "b"])


def test_bench_prints_a_latency(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "bench net.onnx --seconds 1 --num-threads 1") == 0
    assert "median" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "shape"), [("", "1×3×1×1"), ("--input-shapes=x:2,3,5,4 ", "2×3×5×4")]
)
def test_bench_prints_the_shape_that_it_measured(
    options: str, shape: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(folder, f"bench free.onnx {options}--seconds=0.01 --num-threads 1") == 0
    assert f"batch {shape[0]} (x {shape}): median" in capsys.readouterr().out


@pytest.mark.slow
def test_bench_prints_the_time_of_every_kernel(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(folder, "bench net.onnx --seconds 1 --num-threads 1 --layers") == 0
    captured = capsys.readouterr().out
    assert "limit µs" in captured and "By kernel" in captured


@pytest.mark.slow
def test_bench_measures_throughput_at_each_batch(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(busy, "busy_processors", lambda: 0.0)
    onnx.save(wide_model(), folder / "wide.onnx")
    options = "--mode throughput --streams 3 --batch-sizes 1 4 --seconds 1 --num-threads 2"
    assert run(folder, f"bench wide.onnx {options} --json") == 0
    data = json.loads(capsys.readouterr().out)
    assert [each["batch"] for each in data["batches"]] == [1, 4]
    assert all(each["median_seconds"] <= each["p99_seconds"] for each in data["batches"])
    assert all(each["samples_per_second"] > 0 for each in data["batches"])
    assert data["busy"] == ""


def test_bench_warns_where_the_machine_is_busy(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(busy, "busy_processors", lambda: 3.14)
    assert run(folder, "bench net.onnx --seconds 1 --num-threads 1") == 0
    assert "busy (3.1 processors in use)" in capsys.readouterr().out


@pytest.mark.slow
def test_bench_compares_with_other_runtimes(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = "bench net.onnx --seconds 1 --num-threads 1 --compare onnxruntime"
    assert run(folder, line) == 0
    captured = capsys.readouterr().out
    assert "times as fast as" in captured and "█" in captured
    assert run(folder, f"{line} --json") == 0
    beside = json.loads(capsys.readouterr().out)["compared"]
    assert [each["runtime"] for each in beside["runtimes"]] == ["quantglow", "onnxruntime"]
    assert all(each["median_seconds"] > 0 for each in beside["runtimes"])


@pytest.mark.slow
def test_runtimes_that_cannot_run_are_named(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(peers.PLACES, "openvino", "no_such_package.module:latencies")
    monkeypatch.setitem(peers.PLACES, "onnxruntime", "tests.unit.isolated_calls:crash")
    line = "bench net.onnx --seconds 1 --num-threads 1 --compare openvino onnxruntime --json"
    assert run(folder, line) == 0
    beside = json.loads(capsys.readouterr().out)["compared"]
    missing, ended = (each["reason"] for each in beside["runtimes"][1:])
    assert missing == "not installed: pip install openvino"
    assert "SIGSEGV" in ended
    assert beside["verdict"] == "no other runtime ran the model"


def test_an_error_of_a_call_ends_the_measurement() -> None:
    def submit() -> Future[Any]:
        future: Future[Any] = Future()
        future.set_exception(qg.InputError("no such input"))
        return future

    with pytest.raises(qg.InputError, match="no such input"):
        measure_loaded(submit, 2, 60.0)


@pytest.mark.slow
def test_bench_prints_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(folder, "bench net.onnx --seconds 1 --num-threads 1 --layers --json")
    data = json.loads(capsys.readouterr().out)
    calls = data["layers"]["calls"]
    assert data["median_seconds"] > 0
    assert {"Conv"} <= {call["op"] for call in calls}
    assert data["layers"]["seconds"] == pytest.approx(sum(c["seconds"] for c in calls))


@pytest.mark.slow
def test_bundle_writes_files_and_says_what_they_take(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = "--calibration-data samples.npz --target neon --weights c --name net"
    options += " --quantize-input --quantize-output"
    assert run(folder, f"bundle net.onnx {options} --output made.bundle") == 0
    facts = json.loads((folder / "made.bundle" / "net.json").read_text())
    assert (facts["target"]["name"], facts["weights"]["placement"]) == ("neon", "c")
    assert facts["inputs"][0]["c_type"] == facts["outputs"][0]["c_type"] == "int8_t"
    shown = capsys.readouterr().out
    _, flash, ram, *_ = shown.splitlines()
    assert f"({facts['code_nbytes']} code + {facts['weights']['nbytes']} weights)" in flash
    assert f"({facts['arena']['nbytes']} arena + {facts['stack_nbytes']} stack)" in ram
    assert "net_weights.c" in shown and "Outputs against onnxruntime" in shown


def test_bundle_refuses_a_folder_with_a_program_before_the_work(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "mine.bundle").mkdir()
    (folder / "mine.bundle" / "main.c").write_text("int main(void) { return 0; }\n")
    assert run(folder, "bundle missing.onnx --output mine.bundle") == 1
    assert "main.c' would be overwritten" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ("--target cortex-m4 --library shared", "--library shared is for ELF"),
        ("--target cortex-m4 --threads", "the pool is for Linux"),
        ("--target wasm32 --library shared --weights c", "no place for --weights c"),
        ("--target cortex-m3", "unknown target 'cortex-m3'. Remedy: .*'cortex-m0plus'"),
        ("--max-flash 0", "--max-flash must be at least 1"),
        ("--name all", "--name all is a target of CMake"),
    ],
)
def test_bundle_refuses_options_before_the_work(
    folder: Path, capsys: pytest.CaptureFixture[str], options: str, problem: str
) -> None:
    assert run(folder, f"bundle missing.onnx --output none.bundle {options}") == 1
    assert re.search(problem, " ".join(capsys.readouterr().err.split()))


def test_bundle_refuses_flags_of_quantization_without_data(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = "--int16-activations auto --seed 3 --preset performance"
    assert run(folder, f"bundle net.onnx --output none.bundle {flags}") == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "--preset, --int16-activations, --seed: nothing is quantized without" in said


@pytest.mark.slow
def test_bundle_takes_saved_models_and_shapes(folder: Path) -> None:
    np.savez(folder / "any.npz", x=image((4, 3, 9, 5)))
    run(folder, "quantize free.onnx --calibration-data any.npz --output any.qgm")
    for model in ("any.qgm", "free.onnx"):
        assert run(folder, f"bundle {model} --input-shapes x:2,3,4,13 --output any.bundle") == 0
        facts = json.loads((folder / "any.bundle" / "model.json").read_text())
        assert facts["inputs"][0]["shape"] == [2, 3, 4, 13]


@pytest.mark.slow_variants
@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        ("imported", "Transpose("),
        ("optimized", "Conv("),
        ("int8", "Quantize("),
        ("lowered", "Conv("),
        ("program", "@out"),
        ("memory", "lower bound"),
        ("report", "Outputs against"),
    ],
)
def test_inspect_prints_every_stage(
    folder: Path, capsys: pytest.CaptureFixture[str], stage: str, expected: str
) -> None:
    run(folder, f"inspect net.onnx --calibration-data samples.npz --stage {stage}")
    assert expected in capsys.readouterr().out


def test_the_inspected_report_is_that_of_the_options(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = "--calibration-data samples.npz --op-types-to-quantize Gemm"
    run(folder, f"inspect net.onnx --stage report {options}")
    assert "not in op_types_to_quantize" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("compile none.onnx --output a.qgm", "ModelError: "),
        ("compile net.onnx --output a.qgm --input-shapes x:1,a", "OptionError: --input-shapes"),
        ("compile net.onnx --output a.qgm --num-threads 0", "OptionError: --num-threads"),
        ("compile net.onnx --output a.qgm --target avx9", "BackendError: unknown target"),
        ("run net.onnx --inputs none.npz", "InputError: cannot read inputs"),
        ("run net.onnx --inputs net.onnx", "InputError: cannot read inputs"),
        ("run none.qgm --inputs one.npz", "FileFormatError: cannot read"),
        ("quantize net.onnx --calibration-data none.npz", "CalibrationError: cannot read"),
        ("quantize net.onnx --calibration-data net.onnx", "CalibrationError: cannot read"),
        ("inspect net.onnx --stage int8", "OptionError: --stage int8 needs"),
        ("debug net.onnx --calibration-data samples.npz --samples 0", "OptionError: --samples"),
        ("debug net.onnx --calibration-data samples.npz --output a.txt", "OptionError: --output"),
        ("tune", "OptionError: there is nothing to tune"),
        ("tune none.qgm", "FileFormatError: cannot read"),
        ("tune net.onnx --max-minutes 0", "OptionError: --max-minutes"),
        ("tune --machine --max-minutes 0", "OptionError: --max-minutes"),
        ("tune free.onnx", "OptionError: tune: the model leaves dimensions free"),
        ("bench net.onnx --seconds 0", "OptionError: --seconds"),
        ("bench net.onnx --batch-sizes 0", "OptionError: --batch-sizes must be at least 1"),
        ("bench net.onnx --batch-sizes 100000000000000", "OptionError: --batch-sizes: "),
        ("bench net.onnx --code use", "OptionError: --code is for saved models"),
        ("bench net.onnx --onnx net.onnx", "OptionError: --onnx is the model of --compare"),
        ("bench net.qgm --compare openvino", "OptionError: other runtimes do not read .qgm"),
        ("run net.onnx --inputs plain.npy", "InputError: cannot read inputs"),
        ("run net.onnx --inputs empty.npz", "InputError: cannot read inputs"),
        ("run net.onnx --inputs one.npz --output folder.npz", "OptionError: cannot write"),
        ("quantize net.onnx --calibration-data .", "CalibrationError: "),
        (
            "quantize net.onnx --calibration-data samples.npz --output a.txt",
            "OptionError: --output",
        ),
        ("compile net.onnx --output a.txt", "OptionError: --output must end in .qgm or .onnx"),
        ("run net.qgm --inputs one.npz --input-shapes x:1", "OptionError: --input-shapes is for"),
        ("bench net.onnx --input-shapes z:1", "ModelError: --input-shapes names"),
        ("run net.onnx --inputs one.npz --output a.txt", "OptionError: --output must end in .npz"),
        (
            "profile net.onnx --calibration-data samples.npz --output a",
            "OptionError: --output must",
        ),
        ("bundle net.onnx --output . --name 1st", "OptionError: --name 1st"),
        ("bundle net.onnx --output . --target z80", "BackendError: unknown target"),
        ("bundle net.onnx --output net.onnx", "OptionError: cannot write files"),
        ("bundle net.onnx --output net.onnx/folder", "OptionError: cannot write files"),
        ("bundle net.qgm --output . --calibration-data samples.npz", "OptionError: "),
        ("bundle free.onnx --output .", "InputError: "),
        ("quantize net.qgm --calibration-data samples.npz", "OptionError: "),
        ("profile net.qgm --calibration-data samples.npz --output a.npz", "OptionError: "),
        ("debug net.qgm --calibration-data samples.npz", "OptionError: "),
    ],
)
def test_errors_are_one_message_and_exit_code_1(
    folder: Path, capsys: pytest.CaptureFixture[str], line: str, message: str
) -> None:
    assert run(folder, line) == 1
    assert capsys.readouterr().err.startswith(f"quantglow: {message}")


QUANTIZE = "quantize net.onnx --calibration-data samples.npz --output"
READ = "would be read and overwritten"
USED = "a file that the command reads or writes"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("compile net.onnx --output net.onnx", READ),
        (f"{QUANTIZE} net.onnx", READ),
        ("profile net.onnx --calibration-data samples.npz --output samples.npz", READ),
        ("run net.onnx --inputs one.npz --output one.npz", READ),
        (f"{QUANTIZE} new.qgm --trace samples.npz", USED),
        (f"{QUANTIZE} new.qgm --trace new.qgm", USED),
        ("run net.onnx --inputs one.npz --trace net.onnx", USED),
        ("bench net.onnx --seconds 1e-2 --trace net.onnx", USED),
    ],
)
def test_inputs_are_not_overwritten(
    folder: Path, capsys: pytest.CaptureFixture[str], line: str, message: str
) -> None:
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert run(folder, line) == 1
    assert message in capsys.readouterr().err
    assert before == {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_output_into_a_missing_folder_is_refused_before_the_work(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["compile", str(folder / "none.onnx"), "--output", str(folder / "no" / "a.qgm")]
    assert main(line) == 1
    assert "cannot write" in capsys.readouterr().err


@pytest.mark.parametrize("line", [[], ["fly"], ["run"], ["bench", "a", "--num-thr", "1"]], ids=str)
def test_wrong_usage_is_exit_code_2(line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(line)
    assert exit_.value.code == 2


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    assert f"quantglow {command}" in capsys.readouterr().out.split("example:")[1]


def test_flags_are_the_keywords_of_the_function() -> None:
    keywords = set(inspect.signature(qg.quantize_and_compile).parameters)
    options = parser().parse_args(["quantize", "net.onnx", "--calibration-data", "a.npz"])
    ours = {"command", "config", "output", "include_code", "all_layers", "json", "trace"}
    ours |= {"preprocess"}  # an argument of quantglow.data.ImageFolder
    assert set(vars(options)) - ours <= keywords


def test_every_keyword_of_the_function_is_a_flag() -> None:
    """Functions alone have none, and options of later calls are flags of commands that make these;
    defaults are the same, but a terminal shows the latency."""
    parameters = dict(inspect.signature(qg.quantize_and_compile).parameters)
    for name in ("model", "calibration_data", "validation_fn", "while_compiling", "backends"):
        del parameters[name]
    options = vars(parser().parse_args(["quantize", "net.onnx"]))
    assert parameters.keys() <= options.keys()
    defaults = {name: parameter.default for name, parameter in parameters.items()}
    assert {name: options[name] for name in defaults} == {**defaults, "measure_latency": True}


def test_every_field_of_the_configuration_is_a_flag() -> None:
    names = {field.name for field in fields(qg.QuantizationConfig)}
    assert names <= vars(parser().parse_args(["quantize", "net.onnx"])).keys()


def test_flags_reach_the_configuration(folder: Path) -> None:
    line = "inspect net.onnx --percentile 99 --seed 3 --recovery none --equalization align-inputs"
    actual = parse_config(parser().parse_args(line.split()))
    assert (actual.percentile, actual.seed, actual.recovery) == (99.0, 3, ())
    assert actual.equalization == ("align-inputs",)


def test_auto_goes_with_no_other_technique(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = "quantize net.onnx --calibration-data samples.npz --output a.qgm --recovery auto none"
    assert run(folder, line) == 1
    assert "recovery is auto, or none, or names" in capsys.readouterr().err


def test_the_measurement_of_a_machine_says_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(progress: Callable[[int], object]) -> NoReturn:
        progress(16)
        raise qg.BackendError("that is enough")

    monkeypatch.setattr("quantglow.cli.tune.measure_core", measured)
    assert main(["tune", "--machine"]) == 1
    assert "16 tiles timed\n" in capsys.readouterr().err


@pytest.mark.slow
def test_bench_has_one_median_of_a_model(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = "bench net.onnx --seconds 1 --num-threads 1 --compare onnxruntime --json"
    assert run(folder, f"{line} --batch-sizes 1 1") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["median_seconds"] == shown["compared"]["runtimes"][0]["median_seconds"]
    assert len(shown["batches"]) == 2


@pytest.mark.parametrize("stage", ["memory", "int8", "program"])
def test_inspect_shows_no_stage_of_a_file_without_a_program(
    folder: Path, capsys: pytest.CaptureFixture[str], stage: str
) -> None:
    run(folder, "compile free.onnx --output unplanned.qgm")
    assert run(folder, f"inspect unplanned.qgm --stage {stage}") == 1
    assert "unplanned.qgm holds no program" in capsys.readouterr().err


def test_compile_says_when_free_shapes_are_planned(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(folder, "compile free.onnx --output free.qgm") == 0
    shown = capsys.readouterr().out
    assert "planned at first calls of shapes" in shown and "efficiency" not in shown


REPORTING = (
    "quantize net.onnx --calibration-data samples.npz --output next.qgm",
    "quantize close.onnx --calibration-data samples.npz --output close.qgm",
    "bundle net.onnx --calibration-data samples.npz --output next.folder",
    "bundle close.onnx --calibration-data samples.npz --output close.folder",
    "inspect net.onnx --calibration-data samples.npz --stage report",
    "inspect close.onnx --calibration-data samples.npz --stage report",
    "inspect net.qgm --stage report",
    "inspect close.qgm --stage report",
    "compile net.onnx --output plain.qgm",
    "compile close.onnx --output plain.qgm",
    "demo",
)
"""Commands that print a report, on a model with two outputs and one with one."""


@pytest.mark.slow_variants
@pytest.mark.parametrize("line", mark_slow(REPORTING, REPORTING[1:10:3]))
def test_the_next_step_of_a_command_is_a_command(
    line: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(identity_model(), folder / "close.onnx")
    if reads := re.match(r"inspect (\w+)\.qgm", line):
        model = f"{reads[1]}.onnx --calibration-data samples.npz --output {reads[1]}.qgm"
        assert run(folder, f"quantize {model}") == 0
        capsys.readouterr()
    assert run(folder, line) == 0
    steps = re.findall(r"^Next: (.*)$", capsys.readouterr().out, re.MULTILINE)
    assert len(steps) == (not line.startswith(("compile", "demo")))
    for words in map(str.split, steps):
        assert words[0] == "cmake" or (words[:1] == ["quantglow"] and words[1] in COMMANDS)
        assert words[0] == "cmake" or parser().parse_args(words[1:])


VERDICTS = {
    "quantize net.onnx --calibration-data samples.npz --output next.qgm": "int8 is ",
    "bundle net.onnx --calibration-data samples.npz --output next.folder": "int8 is ",
    "inspect net.onnx --calibration-data samples.npz --stage report": "int8 is ",
    "debug net.onnx --calibration-data samples.npz": "int8 is ",
    "compare net.onnx --calibration-data samples.npz --seconds=0.01 --quantizers onnxruntime-minmax"
    "": "quantglow is ",
    "bench net.onnx --compare onnxruntime --seconds=0.01": "times as fast as",
    "demo": "int8 is ",
}
"""Commands with a verdict, and the beginning of it."""


@pytest.mark.slow_variants
@pytest.mark.parametrize(
    "line", mark_slow(VERDICTS, {line for line in VERDICTS if line[:4] not in ("comp", "demo")})
)
def test_a_verdict_comes_before_tables(
    line: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(folder, line) == 0
    before, _, after = capsys.readouterr().out.partition("\n ──")
    assert VERDICTS[line] in before and after


def identity_model() -> onnx.ModelProto:
    """x -> Conv with the weight 1 -> y: int8 is close to float."""
    shapes = {name: [1, 2, 6, 6] for name in "xy"}
    x, y = (
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in shapes.items()
    )
    weights = onnx.numpy_helper.from_array(np.eye(2, dtype=np.float32)[:, :, None, None], "w")
    node = onnx.helper.make_node("Conv", ["x", "w"], ["y"])
    graph = onnx.helper.make_graph([node], "close", [x], [y], [weights])
    return onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8
    )


def test_medians_are_of_one_call() -> None:
    actual = medians({"sleep": lambda: time.sleep(0.005)}, seconds=0.05)
    assert 0.005 <= actual["sleep"] < 0.05


def test_medians_end_where_calls_become_slow() -> None:
    pauses = iter([0.0, 0.001])
    calls: list[None] = []

    def slowing() -> None:
        calls.append(None)
        time.sleep(next(pauses, 0.01))

    medians({"slowing": slowing}, seconds=0.07)
    assert len(calls) < 2 + 7 * 5


@pytest.mark.parametrize("command", COMMANDS)
def test_usage_has_the_model_before_the_flags(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    (usage,) = (t for t in capsys.readouterr().out.splitlines() if t.startswith("usage:"))
    words = usage.split()
    names = [word for word in words[3:] if not word.startswith(("-", "["))]
    assert words[2] == command
    assert words[-2:] == ["[OPTION", "...]"]
    needs_nothing = command in ("demo", "opt", "help", "completion", "tune")
    assert needs_nothing or names[0] in ("model", "recipe")
    assert needs_nothing or not words[3].startswith("-")


def test_run_says_that_onnxruntime_answered(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez(folder / "image.npz", x=image((1, 3, 8, 8)))
    line = "run free.onnx --inputs image.npz --while-compiling"
    monkeypatch.setattr(meanwhile, "QUICK_SECONDS", 60.0)
    assert run(folder, f"{line} wait") == run(folder, f"{line} onnxruntime") == 0
    assert MEANWHILE not in capsys.readouterr().out
    monkeypatch.setattr(meanwhile, "QUICK_SECONDS", 0.0)
    assert run(folder, f"{line} onnxruntime") == 0
    assert MEANWHILE in capsys.readouterr().out


def test_a_profile_is_no_data_to_profile(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "profile net.onnx --calibration-data samples.npz --output p.npz") == 0
    assert run(folder, "profile net.onnx --calibration-data p.npz --output q.npz") == 1
    assert "is a profile already" in capsys.readouterr().err


@pytest.mark.slow
def test_traces_are_written(folder: Path) -> None:
    data = "--calibration-data samples.npz --effort fast"
    assert run(folder, f"quantize net.onnx {data} --output int8.qgm --trace stages.json") == 0
    assert run(folder, "bench int8.qgm --seconds 1e-2 --trace call.json") == 0
    stages, call = (events_of(folder / name) for name in ("stages.json", "call.json"))
    assert {"import", "profile", "quantize"} <= {event["name"] for event in stages}
    assert {event["cat"] for event in call} <= {"kernel", "waiting"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("compile net.onnx --output LOOP.qgm", "cannot write"),
        ("compile LONG.onnx --output new.qgm", "ModelError"),
        ("bundle net.onnx --output LONG.d", "File name too long"),
        ("profile net.onnx --calibration-data LONG.npz --output p.npz", "cannot read"),
        ("profile net.onnx --calibration-data LOOP.npz --output p.npz", "cannot read"),
    ],
)
def test_paths_that_no_file_can_have_are_one_message(
    folder: Path, capsys: pytest.CaptureFixture[str], line: str, message: str
) -> None:
    for ending in ("qgm", "npz"):
        (folder / f"loop.{ending}").unlink(missing_ok=True)
        (folder / f"loop.{ending}").symlink_to(f"loop.{ending}")
    assert run(folder, line.replace("LONG", "a" * 300).replace("LOOP", "loop")) == 1
    printed = capsys.readouterr().err
    assert re.search(message, printed)
    assert printed.count("\n") == 1


@pytest.mark.parametrize("columns", ["0", "-1", "many", ""])
def test_a_width_that_is_none_hides_no_table(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    columns: str,
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert run(folder, "run net.onnx --inputs one.npz") == 0
    assert "scores" in capsys.readouterr().out


def test_a_model_whose_name_is_no_text_has_a_page(folder: Path) -> None:
    name = os.fsdecode(b"b\xff")
    (folder / f"{name}.onnx").write_bytes((folder / "net.onnx").read_bytes())
    line = f"debug {name}.onnx --calibration-data samples.npz --samples 1 --output page.html"
    assert run(folder, f"{line} --no-measure-speed") == 0
    assert "b\\udcff" in (folder / "page.html").read_text(encoding="utf-8")


def events_of(file: Path) -> list[dict[str, Any]]:
    """The intervals of a timeline."""
    return [e for e in json.loads(file.read_text())["traceEvents"] if e["ph"] == "X"]


def test_a_trace_that_cannot_be_written_stops_the_command(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = "quantize net.onnx --calibration-data samples.npz --output new.qgm"
    assert (
        main([*(str(folder / w) if "." in w else w for w in line.split()), "--trace", "no/t"]) == 1
    )
    assert "cannot write 'no/t'" in capsys.readouterr().err
    assert not (folder / "new.qgm").exists()

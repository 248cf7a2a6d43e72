"""Functions of a partitioned bundle compute the integers of the compiled model's segments."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx
import pytest

import quantglow as qg
from quantglow.cli.main import main
from quantglow.importer.onnx.nodes.context import IMPORTERS
from quantglow.ir.types import TensorType
from tests.support.bundled import STRICT, each_compiler, octets
from tests.support.late_models import (
    BUILDERS,
    FLOAT,
    LateBuilder,
    LateModel,
    detector_with_heads,
    tensor,
)

ROWS, WIDTH = 4, 32

CALLER = """
#include <stdio.h>
#include <stdlib.h>
INCLUDES

typedef int function(void *arena, const void *const *inputs, void *const *outputs);
static const struct { const quantglow_facts *facts; function *run; } functions[] = {FUNCTIONS};

static void *memory(int64_t nbytes)
{
    void *place = aligned_alloc(64, (size_t)(nbytes + 63) / 64 * 64 + 64);
    if (!place) exit(97);
    return place;
}

int main(int count, char **words)
{
    const int number = count > 1 ? atoi(words[1]) : 0;
    const quantglow_facts *facts = functions[number].facts;
    const void *inputs[8];
    void *outputs[8];
    for (int i = 0; i < facts->input_count; i++) {
        const size_t nbytes = (size_t)facts->inputs[i].nbytes;
        void *place = memory(facts->inputs[i].nbytes);
        if (fread(place, 1, nbytes, stdin) != nbytes) return 98;
        inputs[i] = place;
    }
    for (int i = 0; i < facts->output_count; i++)
        outputs[i] = memory(facts->outputs[i].nbytes);
    const int result = functions[number].run(memory(facts->arena_nbytes), inputs, outputs);
    if (result) return result;
    for (int i = 0; i < facts->output_count; i++)
        fwrite(outputs[i], 1, (size_t)facts->outputs[i].nbytes, stdout);
    return 0;
}
"""
"""A program that runs one of the functions of a bundle."""

TYPES = {"float": np.float32, "int8_t": np.int8, "uint8_t": np.uint8, "int64_t": np.int64}

Values = dict[str, np.ndarray]


def hardmax_model() -> LateModel:
    """Gemm, Hardmax (not compiled), Add, Gemm."""
    b = LateBuilder(9)
    scores = b.gemm("x", WIDTH, WIDTH)
    both = b.node("Add", scores, b.node("Hardmax", scores))
    outputs = {
        "y": (b.gemm(both, WIDTH, WIDTH), FLOAT, [ROWS, WIDTH]),
        "sums": (both, FLOAT, [ROWS, WIDTH]),
    }
    return LateModel(b.model([tensor("x", FLOAT, [ROWS, WIDTH])], outputs), rows_sample)


def rows_sample(count: int, seed: int) -> Values:
    return {"x": np.random.default_rng(seed).standard_normal((ROWS, WIDTH), np.float32)}


def quantize(model: LateModel) -> Any:
    with patch.dict(IMPORTERS):
        del IMPORTERS["Hardmax"]
        return qg.quantize_and_compile(model.model, model.samples(), progress=False, verify=False)


@pytest.fixture(scope="module")
def detector() -> Any:
    return quantize(detector_with_heads())


@pytest.fixture(scope="module")
def middle() -> Any:
    return quantize(hardmax_model())


def manifest(folder: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((folder / "net.json").read_text())
    return facts


def functions_of(folder: Path) -> list[dict[str, Any]]:
    return [part for part in manifest(folder)["segments"] if "inputs" in part]


def build_caller(folder: Path, compiler: str) -> None:
    """Write the program ``caller`` beside a bundle."""
    names = [function["name"] for function in functions_of(folder)]
    table = ", ".join(f"{{&{name}_facts, {name}_run}}" for name in names)
    text = CALLER.replace("FUNCTIONS", table)
    text = text.replace("INCLUDES", "\n".join(f'#include "{name}.h"' for name in names))
    (folder / "caller.c").write_text(text)
    options = ["-std=c11", *STRICT[1:], "-o", "caller"]
    files = ["caller.c", *(f"{name}.o" for name in names)]
    subprocess.run([compiler, *options, *files], cwd=folder, check=True)


def call(folder: Path, number: int, values: Values) -> Values:
    """The outputs of a function of the bundle by name."""
    facts = functions_of(folder)[number]
    inputs = octets(values[each["name"]] for each in facts["inputs"])
    ran = subprocess.run([folder / "caller", str(number)], input=inputs, capture_output=True)
    assert ran.returncode == 0
    results, start = {}, 0
    for each in facts["outputs"]:
        data, start = ran.stdout[start:][: each["nbytes"]], start + each["nbytes"]
        results[each["name"]] = np.frombuffer(data, TYPES[each["c_type"]]).reshape(each["shape"])
    return results


def segment_values(compiled: Any, feeds: Values) -> Values:
    """All values that cross borders of the compiled model's segments before a late size."""
    values = dict(feeds)
    for segment in compiled.build.segments:
        if segment.graph.symbols:
            break
        code = segment.backend.compile(segment.graph, compiled.build.target, 1)
        results = code.run({node.name: values[node.name] for node in segment.graph.inputs})
        values |= dict(zip((name for name, _ in segment.graph.outputs), results, strict=True))
    return values


@each_compiler
def test_a_function_before_the_end_of_a_detector_computes_its_integers(
    detector: Any, tmp_path: Path, compiler: str
) -> None:
    detector.export_bundle(tmp_path, name="net", partition=True)
    build_caller(tmp_path, compiler)
    for feeds in detector_with_heads().samples(3):
        actual = call(tmp_path, 0, feeds)
        features, brightness = (
            segment_values(detector, feeds)[n] for n in ("relu3:0", "reshape5:0")
        )
        assert actual["reshape10:0"].tobytes() == features.tobytes()
        assert actual["reshape5:0"].tobytes() == brightness.tobytes()


@each_compiler
def test_functions_around_an_operator_compute_the_model(
    middle: Any, tmp_path: Path, compiler: str
) -> None:
    middle.export_bundle(tmp_path, name="net", partition=True)
    build_caller(tmp_path, compiler)
    for feeds in hardmax_model().samples(3):
        values = feeds | call(tmp_path, 0, feeds)
        _, left, _ = manifest(tmp_path)["segments"]
        (operand,), (result,) = left["reads"], left["results"]
        scores = values[operand["name"]]
        values[result["name"]] = np.eye(WIDTH, dtype=np.float32)[scores.argmax(axis=1)]
        values |= call(tmp_path, 1, values)
        expected = dict(zip(("y", "sums"), middle.run(None, feeds), strict=True))
        places = {each["output"]: each["value"] for each in manifest(tmp_path)["results"]}
        assert {name: values[places[name]].tobytes() for name in expected} == {
            name: array.tobytes() for name, array in expected.items()
        }


@pytest.mark.slow_variants
@pytest.mark.parametrize("weights", ["object", "bin", "c"])
@pytest.mark.parametrize("target", ["native", "x86-64:all"])
def test_the_example_of_a_partitioned_bundle_is_strict_c99(
    middle: Any, tmp_path: Path, weights: str, target: str
) -> None:
    options = {"weights": weights, "target": target, "threads": True}
    middle.export_bundle(tmp_path, name="net", partition=True, **options)
    for source in sorted(tmp_path.glob("*.c")):
        command = ["cc", *STRICT, "-D_POSIX_C_SOURCE=200809L", "-fsyntax-only", source]
        assert subprocess.run(command, cwd=tmp_path).returncode == 0


def test_the_border_names_operators_and_values(detector: Any, tmp_path: Path) -> None:
    detector.export_bundle(tmp_path, name="net", partition=True)
    function, left = manifest(tmp_path)["segments"]
    assert left["operators"][0]["op"] == "NonMaxSuppression"
    assert {each["op"] for each in left["operators"]} == {
        "NonMaxSuppression", "Gather", "Gemm", "Relu"
    }  # fmt: skip
    outputs = [{k: v for k, v in each.items() if k != "nbytes"} for each in function["outputs"]]
    assert sorted(outputs, key=str) == sorted(left["reads"], key=str)
    assert [each["shape"] for each in left["results"]] == [
        ["nonmaxsuppression6_0_0", 4],
        ["nonmaxsuppression6_0_0", 16],
    ]
    for file in ("net.h", "main.c"):
        assert "nonmaxsuppression6:0 (NonMaxSuppression)" in (tmp_path / file).read_text()


def test_without_the_option_operators_and_the_remedy_are_named(
    detector: Any, tmp_path: Path
) -> None:
    words = r"'nonmaxsuppression6:0' \(NonMaxSuppression\).*Remedy: partition=True"
    with pytest.raises(qg.BackendError, match=words):
        detector.export_bundle(tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def test_a_model_that_is_compiled_whole_has_the_same_bundle(tmp_path: Path) -> None:
    model = hardmax_model()
    whole: Any = qg.quantize_and_compile(model.model, model.samples(), progress=False, verify=False)
    for folder, partition in (("plain", False), ("split", True)):
        whole.export_bundle(tmp_path / folder, name="net", partition=partition)
    files = sorted(path.name for path in (tmp_path / "plain").iterdir())
    assert [(tmp_path / "split" / f).read_bytes() for f in files] == [
        (tmp_path / "plain" / f).read_bytes() for f in files
    ]


def test_the_command_lists_what_is_left_to_the_caller(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(detector_with_heads().model, tmp_path / "model.onnx")
    files = [str(tmp_path / "model.onnx"), "--output", str(tmp_path / "net")]
    assert main(["bundle", *files, "--partition"]) == 0
    shown = capsys.readouterr().out
    assert "Left to the caller" in shown and "NonMaxSuppression" in shown


def test_limits_are_those_of_all_functions(middle: Any, tmp_path: Path) -> None:
    middle.export_bundle(tmp_path, name="net", partition=True)
    functions = functions_of(tmp_path)
    weights = sum(function["weights"]["nbytes"] for function in functions)
    with pytest.raises(qg.BackendError, match=rf"{weights:,} weights.*max_flash=1"):
        middle.export_bundle(tmp_path, name="net", partition=True, max_flash=1)


def test_files_of_functions_that_are_gone_are_removed(
    middle: Any, detector: Any, tmp_path: Path
) -> None:
    middle.export_bundle(tmp_path, name="net", partition=True)
    assert (tmp_path / "net_2.o").exists()
    detector.export_bundle(tmp_path, name="net", partition=True)
    assert not (tmp_path / "net_2.o").exists()


def test_a_model_without_functions_is_refused(detector: Any, tmp_path: Path) -> None:
    graph = detector.graph
    left = [node for node in graph.nodes if node.op == "External"]
    (x,) = graph.inputs
    kind = TensorType(left[0].result.dtype, (4, 3))
    boxes = replace(left[0], args=(left[0].args[0], replace(x, name="scores")), result=kind)
    with pytest.raises(qg.BackendError, match=r"caller would compute all operators.*Remedy"):
        qg.compile(qg.Graph((boxes.args[1],), (("y", boxes),))).export_bundle(
            tmp_path, partition=True
        )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rows", "crops"])
def test_outputs_that_functions_give_are_the_models(kind: str, tmp_path: Path) -> None:
    model = BUILDERS[kind]()
    quantize(model).export_bundle(tmp_path, name="net", partition=True)
    facts = manifest(tmp_path)
    values = [
        each for part in facts["segments"] for each in part.get("outputs", part.get("results"))
    ]
    assert {each["value"] for each in facts["results"]} <= {each["name"] for each in values}

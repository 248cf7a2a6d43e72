"""A process that loads and runs a saved model needs little."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import quantglow as qg
from tests.support.small_network import small_model, small_samples

HEAVY = {
    "onnx",
    "onnxruntime",
    "scipy",
    "rich",
    "quantglow.export.onnx",
    "quantglow.importer",
    "quantglow.ort.quantizer_input",
    "quantglow.ort.shape_guards",
    "quantglow.quantization",
    "quantglow.report",
}
"""Libraries and parts of the package that only a compiler needs."""

COMPILING = {
    "llvmlite.binding",
    "quantglow.codegen.llvm.compiler",
    "quantglow.codegen.llvm.emission",
    "quantglow.codegen.llvm.kernels",
    "quantglow.memory.genetic_search",
    "quantglow.memory.planning",
    "quantglow.memory.schedule",
    "quantglow.memory.tasks",
    "quantglow.runtime.native.compilation",
    "quantglow.transforms.float",
    "quantglow.transforms.lowering",
}
"""Parts that a process needs only to plan and emit programs; ``memory.planner`` also computes the
arenas of stored programs at new shapes."""

LIGHT = {"quantglow.quantization", "quantglow.quantization.options"}
"""Options, which the page of a model shows."""

RUN = """
import json, sys
import numpy as np
import quantglow as qg

model, inputs, outputs = sys.argv[1:]
np.save(outputs, qg.load(model, num_threads=1)(np.load(inputs))[0])
print(json.dumps(sorted(sys.modules)))
"""


def save_small(folder: Path, model: onnx.ModelProto) -> Path:
    """The file of the int8 model, beside its inputs and outputs."""
    path = folder / "model.qgm"
    compiled = qg.quantize_and_compile(model, small_samples(), num_threads=1)
    compiled.save(path)
    np.save(folder / "inputs.npy", small_samples()[0])
    np.save(folder / "expected.npy", compiled(small_samples()[0])[0])
    return path


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return save_small(tmp_path, small_model())


def modules_of_a_run(saved: Path) -> set[str]:
    """Modules that a process imports which loads and runs the model, leaving its outputs."""
    files = [str(saved), str(saved.with_name("inputs.npy")), str(saved.with_name("found.npy"))]
    command = [sys.executable, "-c", RUN, *files]
    done = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE)
    return set(json.loads(done.stdout))


def those_within(names: set[str], parts: set[str]) -> set[str]:
    """The names that are one of ``parts``, or lie inside one."""
    within = re.compile(rf"({'|'.join(map(re.escape, sorted(parts)))})(\.|$)")
    return {name for name in names if within.match(name)}


def test_running_a_saved_model_imports_no_compiler_front(saved: Path) -> None:
    assert those_within(modules_of_a_run(saved), HEAVY) - LIGHT == set()


@pytest.mark.parametrize("is_free", [False, True])
def test_a_process_that_finds_its_programs_on_disk_imports_nothing_that_makes_them(
    is_free: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = small_model()
    if is_free:
        for port in (*model.graph.input, *model.graph.output):
            port.type.tensor_type.shape.dim[0].dim_param = "N"
    path = save_small(tmp_path, model)
    monkeypatch.setenv("QUANTGLOW_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("QUANTGLOW_VERIFY", "0")  # Programs that are verified are not kept.
    assert those_within(modules_of_a_run(path), COMPILING) >= {"llvmlite.binding"}
    assert those_within(modules_of_a_run(path), COMPILING) == set()


def test_another_process_gets_the_same_integers(saved: Path) -> None:
    modules_of_a_run(saved)
    expected, actual = (np.load(saved.with_name(f"{n}.npy")) for n in ("expected", "found"))
    np.testing.assert_array_equal(actual, expected)


def test_unknown_names_of_the_package_are_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'quantise'"):
        _ = qg.quantise  # type: ignore[attr-defined]

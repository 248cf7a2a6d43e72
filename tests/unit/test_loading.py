"""A process that loads and runs a saved model needs little."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
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


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "model.qgm"
    compiled = qg.quantize_and_compile(small_model(), small_samples(), num_threads=1)
    compiled.save(path)
    np.save(tmp_path / "inputs.npy", small_samples()[0])
    np.save(tmp_path / "expected.npy", compiled(small_samples()[0])[0])
    return path


def modules_of_a_run(saved: Path) -> set[str]:
    """Modules that a process imports which loads and runs the model, leaving its outputs."""
    files = [str(saved), str(saved.with_name("inputs.npy")), str(saved.with_name("found.npy"))]
    command = [sys.executable, "-c", RUN, *files]
    done = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE)
    return set(json.loads(done.stdout))


def test_running_a_saved_model_imports_no_compiler_front(saved: Path) -> None:
    heavy = re.compile(rf"({'|'.join(map(re.escape, sorted(HEAVY)))})(\.|$)")
    assert {name for name in modules_of_a_run(saved) if heavy.match(name)} - LIGHT == set()


def test_another_process_gets_the_same_integers(saved: Path) -> None:
    modules_of_a_run(saved)
    expected, actual = (np.load(saved.with_name(f"{n}.npy")) for n in ("expected", "found"))
    np.testing.assert_array_equal(actual, expected)


def test_unknown_names_of_the_package_are_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'quantise'"):
        _ = qg.quantise  # type: ignore[attr-defined]

"""Bundles that take and give integers need no float at their border."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import quantglow as qg
from quantglow.ir.ops.arithmetic import quantize
from quantglow.ir.types import DType, ElementType, QuantParams
from quantglow.support.errors import OptionError
from tests.support.small_network import small_model, small_samples

MAIN = """
#include <stdio.h>
#include "net.h"
QUANTGLOW_ALIGN(NET_ARENA_ALIGN) static unsigned char arena[NET_ARENA_NBYTES];
static int8_t x[NET_INPUT0_SIZE], scores[NET_OUTPUT0_SIZE], features[NET_OUTPUT1_SIZE];
static const NET_INPUT0_TYPE *const same_type = x;

int main(void) {
    const void *inputs[1];
    void *outputs[2];
    inputs[0] = same_type;
    outputs[0] = scores;
    outputs[1] = features;
    if (fread(x, 1, sizeof x, stdin) != sizeof x) return 99;
    if (net_run(arena, inputs, outputs)) return 98;
    fwrite(scores, 1, sizeof scores, stdout);
    fwrite(features, 1, sizeof features, stdout);
    return 0;
}
"""


@pytest.fixture(scope="module")
def compiled() -> Any:
    samples = small_samples()
    return qg.quantize_and_compile(small_model(), samples, progress=False, quantize_output=True)


def element(facts: dict[str, Any]) -> ElementType:
    return ElementType(DType.I8, QuantParams.per_tensor(facts["scale"], facts["zero_point"]))


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("gcc"), reason="gcc is not installed")
def test_integers_are_those_of_rounding_outside(compiled: Any, tmp_path: Path) -> None:
    compiled.export_bundle(tmp_path, name="net", quantize_input=True, quantize_output=True)
    (tmp_path / "main.c").write_text(MAIN)
    subprocess.run(
        ["gcc", "-std=c99", "-pedantic", "-Werror", "main.c", "net.o", "-o", "main"],
        cwd=tmp_path,
        check=True,
    )
    facts = json.loads((tmp_path / "net.json").read_text())
    sample = small_samples()[0]
    x = quantize(sample, element(facts["inputs"][0]))
    ran = subprocess.run([tmp_path / "main"], input=x.tobytes(), capture_output=True, check=True)
    floats = qg.interpret(compiled.graph, {"x": sample})
    rounded = [quantize(y, element(f)) for y, f in zip(floats, facts["outputs"], strict=True)]
    assert ran.stdout == b"".join(y.tobytes() for y in rounded)


@pytest.mark.slow
def test_no_kernel_converts_at_the_border(compiled: Any, tmp_path: Path) -> None:
    compiled.export_bundle(tmp_path, name="net", quantize_input=True, quantize_output=True)
    kernels = json.loads((tmp_path / "net.json").read_text())["kernels"]
    assert not [name for name in kernels if name.endswith((":q", ":dq"))]


@pytest.mark.parametrize("option", ["quantize_input", "quantize_output"])
def test_float_models_have_no_integers(tmp_path: Path, option: str) -> None:
    model: Any = qg.compile(small_model())
    with pytest.raises(OptionError, match=option):
        model.export_bundle(tmp_path / "bundle", **{option: True})
    assert not list(tmp_path.iterdir())

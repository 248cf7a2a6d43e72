"""Facts about a model as data: a program reads the manifest's figures."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

import quantglow as qg
from quantglow.export.bundle.constants import ABI
from tests.support.bundled import each_compiler
from tests.support.small_network import small_model, small_samples

STRICT = ("-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror")
MAIN = """
#include <stdio.h>
#include "net.h"
#include "other.h"

static void show(const quantglow_tensor *tensors, int count) {
    int i, axis;
    for (i = 0; i < count; i++) {
        const quantglow_tensor *t = &tensors[i];
        printf("%s{\\"name\\": \\"%s\\", \\"nbytes\\": %ld, ", i ? ", " : "", t->name,
               (long)t->nbytes);
        printf("\\"scale\\": %.9g, \\"zero_point\\": %d, \\"type\\": %d, \\"shape\\": [", t->scale,
               (int)t->zero_point, (int)t->type);
        for (axis = 0; axis < t->rank; axis++)
            printf("%s%d", axis ? ", " : "", (int)t->shape[axis]);
        printf("]}");
    }
}

static void facts(const quantglow_facts *f) {
    int k;
    printf("[\\"%s\\", \\"%s\\", \\"%s\\", \\"%s\\", %ld, %ld, %ld, %d, [", f->name, f->target,
           f->version, f->source_hash, (long)f->arena_nbytes, (long)f->arena_align,
           (long)f->weights_nbytes, (int)f->abi);
    show(f->inputs, f->input_count);
    printf("], [");
    show(f->outputs, f->output_count);
    printf("], [");
    for (k = 0; k < f->kernel_count; k++) printf("%s\\"%s\\"", k ? ", " : "", f->kernels[k]);
    printf("]]\\n");
}

int main(void) {
    facts(&net_facts);
    facts(&other_facts);
    return 0;
}
"""
NUMBERS = {"float": 1, "uint8_t": 2, "int8_t": 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two bundles, one of them with constants in a C file."""
    folder = tmp_path_factory.mktemp("facts")
    compiled: Any = qg.quantize_and_compile(small_model(), small_samples(), progress=False)
    compiled.export_bundle(folder, name="net")
    qg.compile(small_model()).export_bundle(folder, name="other", weights="c")
    (folder / "main.c").write_text(MAIN)
    return folder


def expected(facts: dict[str, Any]) -> list[Any]:
    """The line of a bundle."""
    ends = [
        [
            {key: tensor[key] for key in ("name", "nbytes", "shape")}
            | {"type": NUMBERS[tensor["c_type"]]}
            | {key: tensor[key] or 0 for key in ("scale", "zero_point")}
            for tensor in facts[place]
        ]
        for place in ("inputs", "outputs")
    ]
    words = facts["name"], facts["target"]["name"], facts["quantglow"], facts["source_hash"]
    sizes = *facts["arena"].values(), facts["weights"]["nbytes"], ABI
    return [*words, *sizes, *ends, facts["kernels"]]


@pytest.mark.slow_variants
@each_compiler
@pytest.mark.parametrize("kind", ["-no-pie", "-pie"])
def test_one_program_reads_the_facts_of_two_models(folder: Path, compiler: str, kind: str) -> None:
    sources = ("main.c", "other_weights.c", "net.o", "other.o")
    place = "-fPIE" if kind == "-pie" else "-fno-pie"
    command = [compiler, *STRICT, kind, place, *sources, "-o", "show", "-lm"]
    subprocess.run(command, cwd=folder, check=True)
    ran = subprocess.run([folder / "show"], capture_output=True, text=True, check=True)
    data = [json.loads((folder / f"{name}.json").read_text()) for name in ("net", "other")]
    assert list(map(json.loads, ran.stdout.splitlines())) == list(map(expected, data))
    assert len(data[0]["source_hash"]) == 64


def test_facts_leave_a_program_that_does_not_read_them(folder: Path) -> None:
    (folder / "run.c").write_text(
        '#include "net.h"\nint main(void) { return net_run(0, 0, 0) != NET_NULL; }\n'
    )
    compilers = ["gcc", "-Wl,--gc-sections", "run.c", "net.o", "-o", "small"]
    subprocess.run(compilers, cwd=folder, check=True)
    assert subprocess.run([folder / "small"]).returncode == 0
    assert b"net_facts" not in (folder / "small").read_bytes()

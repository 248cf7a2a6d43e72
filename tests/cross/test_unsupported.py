"""A bundle of one level gives a result on a processor without it, not an illegal instruction."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import quantglow as qg
from quantglow.export.bundle.run_functions import OK, UNSUPPORTED
from tests.support.small_network import small_model, small_samples

MAIN = """
#include "net.h"
static QUANTGLOW_ALIGN(NET_ARENA_ALIGN) unsigned char arena[NET_ARENA_NBYTES];
static NET_INPUT0_TYPE input[NET_INPUT0_SIZE];
static NET_OUTPUT0_TYPE scores[NET_OUTPUT0_SIZE];
static NET_OUTPUT1_TYPE features[NET_OUTPUT1_SIZE];
static void alone(void *user) { (void)user; }
static void silent(void *user, int kernel, int phase) { (void)user; (void)kernel; (void)phase; }
int main(void) {
    const void *inputs[] = {input};
    void *outputs[] = {scores, features};
    int run = net_run(arena, inputs, outputs);
    if (net_run_part(arena, inputs, outputs, 0, 1, alone, 0) != run) return 91;
    if (net_run_observed(arena, inputs, outputs, silent, 0) != run) return 92;
#ifdef NET_STACK_NBYTES_AT
    if (!net_vlen() != (run == NET_UNSUPPORTED)) return 93;
#endif
    return net_run(arena, inputs, outputs) == run ? run : 94;
}
"""
VECTORS = "rv64,v=true,vext_spec=v1.0,vlen=256"
CASES = [
    ("aarch64", "dotprod", "cortex-a57", UNSUPPORTED),
    ("aarch64", "dotprod", "cortex-a76", OK),
    ("aarch64", "i8mm", "cortex-a76", UNSUPPORTED),
    ("aarch64", "i8mm", "max,sve=off,sme=off", OK),
    ("aarch64", "neon", "cortex-a57", OK),
    ("riscv64", "rv64gcv", "rv64", UNSUPPORTED),
    ("riscv64", "rv64gcv", VECTORS, OK),
    ("riscv64", "rv64gc", "rv64", OK),
    ("x86_64", "avx2", "Westmere", UNSUPPORTED),
    ("x86_64", "avx2", "max", OK),
    ("x86_64", "avx512vnni", "max", UNSUPPORTED),
    ("x86_64", "avxvnni", "qemu64", UNSUPPORTED),
    ("x86_64", "x86-64", "qemu64", OK),
]
"""Architecture, level, QEMU's name of a processor, result of a run."""

pytestmark = pytest.mark.emulated


@pytest.fixture(scope="module")
def compiled() -> qg.CompiledModel:
    compiled = qg.quantize_and_compile(small_model(), small_samples(), progress=False)
    assert isinstance(compiled, qg.CompiledModel)
    return compiled


@pytest.mark.parametrize(("architecture", "level", "processor", "result"), CASES)
def test_a_run_says_that_the_processor_lacks_the_level(
    compiled: qg.CompiledModel,
    tmp_path: Path,
    architecture: str,
    level: str,
    processor: str,
    result: int,
) -> None:
    compiler, emulator = f"{architecture}-linux-gnu-gcc", f"qemu-{architecture}"
    if not (shutil.which(compiler) and shutil.which(emulator)):
        pytest.skip(f"no {compiler} or {emulator}: `make cross-setup` installs them")
    compiled.export_bundle(tmp_path, name="net", target=level)
    (tmp_path / "run.c").write_text(MAIN)
    files = [tmp_path / name for name in ("run.c", "net.o", "run")]
    subprocess.run([compiler, "-static", *files[:2], "-lm", "-o", files[2]], check=True)
    ran = subprocess.run([emulator, "-cpu", processor, files[2]])
    assert ran.returncode == result

"""Threads with arenas of their own run one bundle at once, without races, invalid accesses, or
outputs that depend on bytes which nobody wrote."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import quantglow as qg
from tests.support.small_network import small_model, small_samples

VALGRIND = ("valgrind", "-q", "--error-exitcode=9")

MAIN = """
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "net.h"
enum { THREADS = 8, RUNS = 20 };
static float x[NET_INPUT0_SIZE], scores[THREADS][NET_OUTPUT0_SIZE];

static void *work(void *own) {
    void *arena = NULL, *outputs[2];
    const void *inputs[1];
    int i;
    if (posix_memalign(&arena, NET_ARENA_ALIGN, NET_ARENA_NBYTES)) return own;
    inputs[0] = x;
    outputs[0] = own;
    outputs[1] = malloc(NET_OUTPUT1_NBYTES);
    for (i = 0; i < RUNS; i++)
        if (net_run(arena, inputs, outputs) != NET_OK) abort();
    free(outputs[1]);
    free(arena);
    return NULL;
}

int main(void) {
    pthread_t threads[THREADS];
    int i;
    for (i = 0; i < NET_INPUT0_SIZE; i++) x[i] = (float)i / 50;
    for (i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, work, scores[i]);
    for (i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    for (i = 1; i < THREADS; i++)
        if (memcmp(scores[0], scores[i], sizeof scores[0])) return 1; /* valgrind sees the branch */
    return 0;
}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("threads")
    compiled: Any = qg.quantize_and_compile(small_model(), small_samples(), progress=False)
    compiled.export_bundle(folder, name="net", target="x86-64")
    (folder / "threads.c").write_text(MAIN)
    return folder


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("gcc"), reason="gcc is not installed")
@pytest.mark.parametrize(
    ("flag", "runner"),
    [("-fsanitize=thread", ()), ("-O1", VALGRIND)],
    ids=["thread sanitizer", "valgrind"],
)
def test_eight_threads_run_at_once(folder: Path, flag: str, runner: tuple[str, ...]) -> None:
    if runner and not shutil.which(runner[0]):
        pytest.skip(f"{runner[0]} is not installed")
    command = ["gcc", flag, "-g", "-pthread", "threads.c", "net.o", "-o", "threads"]
    subprocess.run(command, cwd=folder, check=True)
    ran = subprocess.run([*runner, "./threads"], cwd=folder, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")

"""Several threads of the caller run a bundle together and compute the integers of one."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

import quantglow as qg
from quantglow.codegen.llvm.targets import runs_here
from quantglow.export.bundle import run_functions as part_function
from quantglow.export.bundle.exporter import BundleOptions, export_bundle
from quantglow.ir.graph.graph import Graph
from tests.support.bundled import COMPILERS, STRICT, interpreted, written
from tests.support.embedded import network
from tests.support.pinned import NAMES, feeds_of, hashes, pinned

MAIN = """
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include "net.h"

enum { MOST = 8 };
static pthread_barrier_t barrier;
static int count;
static void *arena, *outputs[16];
static const void *inputs[16];

static void wait_for_all(void *user) { pthread_barrier_wait((pthread_barrier_t *)user); }

static void *work(void *part) {
    const int result = net_run_part(arena, inputs, outputs, *(int *)part, count, wait_for_all,
                                    &barrier);
    if (result) exit(result);
    return NULL;
}

static void *memory(int64_t nbytes) {
    void *made = NULL;
    if (posix_memalign(&made, NET_ARENA_ALIGN, (size_t)nbytes)) exit(99);
    return made;
}

int main(int argument_count, char **arguments) {
    pthread_t threads[MOST];
    int i, parts[MOST];
    if (argument_count != 2) return 97;
    count = atoi(arguments[1]);
    pthread_barrier_init(&barrier, NULL, (unsigned)count);
    arena = memory(NET_ARENA_NBYTES);
    for (i = 0; i < NET_OUTPUT_COUNT; i++) outputs[i] = memory(net_facts.outputs[i].nbytes);
    for (i = 0; i < NET_INPUT_COUNT; i++) {
        const size_t nbytes = (size_t)net_facts.inputs[i].nbytes;
        void *given = memory((int64_t)nbytes);
        if (fread(given, 1, nbytes, stdin) != nbytes) return 98;
        inputs[i] = given;
    }
    for (i = 0; i < count; i++) parts[i] = i;
    for (i = 1; i < count; i++) pthread_create(&threads[i], NULL, work, &parts[i]);
    work(&parts[0]);
    for (i = 1; i < count; i++) pthread_join(threads[i], NULL);
    for (i = 0; i < NET_OUTPUT_COUNT; i++)
        fwrite(outputs[i], 1, (size_t)net_facts.outputs[i].nbytes, stdout);
    return 0;
}
"""

pytestmark = pytest.mark.skipif(not COMPILERS, reason="neither gcc nor clang is installed")
is_x86 = pytest.mark.skipif(not runs_here("x86-64"), reason="this is no x86-64")
QUICK = ("recurrent", "residual")
graphs = pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in NAMES]
)


def program_of(graph: Graph, folder: Path, target: str, *options: str) -> Path:
    """The program that runs a graph's bundle by some threads, as its argument says."""
    export_bundle(graph, folder, BundleOptions(name="net", target=target))
    source, program = folder / "parts.c", folder / "parts"
    source.write_text(MAIN)
    ours = (f"-I{folder}", "-pthread", *options)
    command = [COMPILERS[0], *STRICT, "-g", "-O1", *ours, source, *sorted(folder.glob("*.o"))]
    subprocess.run([*command, "-o", program], check=True)
    return program


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads share small kernels, too."""
    monkeypatch.setattr(part_function, "LEAST_WORK", 0)


@pytest.mark.slow_variants
@pytest.mark.usefixtures("shared")
@graphs
def test_any_number_of_threads_computes_the_same(name: str, tmp_path: Path) -> None:
    graph = pinned(name)
    feeds = feeds_of(graph, hashes()[name][0])[:1]
    program, expected = program_of(graph, tmp_path, "native"), interpreted(graph, feeds)
    for threads in "123":
        assert written(program, graph, feeds, threads) == expected, threads


@is_x86
@pytest.mark.usefixtures("shared")
@pytest.mark.slow
def test_thread_sanitizer_finds_nothing(tmp_path: Path) -> None:
    graph = pinned("residual")
    feeds = feeds_of(graph, hashes()["residual"][0])[:1]
    if COMPILERS[0] != "gcc":
        pytest.skip("gcc is not installed")
    program = program_of(graph, tmp_path, "x86-64:all", "-fsanitize=thread")
    assert written(program, graph, feeds, "3") == interpreted(graph, feeds)


@pytest.mark.slow
def test_threads_share_the_large_kernels_of_a_network(tmp_path: Path) -> None:
    chosen = network("mnist")
    feeds = chosen.feeds(4)
    compiled: Any = qg.quantize_and_compile(chosen.path, feeds, progress=False)
    program = program_of(compiled.graph, tmp_path, "native")
    expected = interpreted(compiled.graph, feeds[:1])
    for threads in "23":
        assert written(program, compiled.graph, feeds[:1], threads) == expected, threads

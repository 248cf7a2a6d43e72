"""The thread pool of a bundle computes the integers of one thread, whatever else runs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import quantglow as qg
from quantglow.export.bundle import run_functions as part_function
from quantglow.export.bundle.exporter import BundleOptions, export_bundle
from quantglow.ir.graph.graph import Graph
from tests.support.bundled import STRICT, each_compiler, interpreted, tools, written
from tests.support.combinations import covering
from tests.support.pinned import feeds_of, hashes, pinned
from tests.unit.export.bundle.test_parts import graphs, is_x86

MAIN = """
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "net_pool.h"

enum { POOLS = 2, RUNS = 5 };
static const void *inputs[16];

typedef struct { net_pool pool; void *arena, *outputs[16]; } own;

static void *memory(int64_t nbytes) {
    void *made = NULL;
    if (posix_memalign(&made, NET_ARENA_ALIGN, (size_t)nbytes)) exit(99);
    return made;
}

static void *work(void *user) {
    own *mine = (own *)user;
    int i;
    for (i = 0; i < RUNS; i++)
        if (net_pool_run(&mine->pool, mine->arena, inputs, mine->outputs)) exit(97);
    return NULL;
}

int main(int count, char **arguments) {
    const int threads = count > 1 ? atoi(arguments[1]) : 2;
    static own every[POOLS];
    pthread_t callers[POOLS];
    int i, pool;
    if (net_pool_start(&every[0].pool, 0) == 0) return 96;
    if (net_pool_start(&every[0].pool, NET_POOL_MOST + 1) == 0) return 95;
    for (i = 0; i < NET_INPUT_COUNT; i++) {
        const size_t nbytes = (size_t)net_facts.inputs[i].nbytes;
        void *given = memory((int64_t)nbytes);
        if (fread(given, 1, nbytes, stdin) != nbytes) return 98;
        inputs[i] = given;
    }
    for (pool = 0; pool < POOLS; pool++) {
        every[pool].arena = memory(NET_ARENA_NBYTES);
        for (i = 0; i < NET_OUTPUT_COUNT; i++)
            every[pool].outputs[i] = memory(net_facts.outputs[i].nbytes);
        if (net_pool_start(&every[pool].pool, threads + pool)) return 94;
    }
    for (pool = 0; pool < POOLS; pool++)
        pthread_create(&callers[pool], NULL, work, &every[pool]);
    for (pool = 0; pool < POOLS; pool++) {
        pthread_join(callers[pool], NULL);
        net_pool_stop(&every[pool].pool);
    }
    for (i = 0; i < NET_OUTPUT_COUNT; i++) {
        const size_t nbytes = (size_t)net_facts.outputs[i].nbytes;
        for (pool = 1; pool < POOLS; pool++)
            if (memcmp(every[0].outputs[i], every[pool].outputs[i], nbytes)) return 93;
        fwrite(every[0].outputs[i], 1, nbytes, stdout);
    }
    return 0;
}
"""


@pytest.fixture(autouse=True)
def shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads share small kernels, too."""
    monkeypatch.setattr(part_function, "LEAST_WORK", 0)


def program_of(graph: Graph, folder: Path, compiler: str, target: str, *options: str) -> Path:
    """The program that runs a graph's bundle by two pools at once; its argument is the number of
    threads of the first, by default 2."""
    export_bundle(graph, folder, BundleOptions(name="net", target=target, threads=True))
    source = folder / "main_pool.c"
    source.write_text(MAIN)
    ours = (f"-I{folder}", "-pthread", "-g", "-O1", *options)
    files = [source, folder / "net_pool.c", *sorted(folder.glob("*.o"))]
    command = [compiler, *STRICT, *ours, *files]
    subprocess.run([*command, "-o", folder / "pool"], check=True)
    return folder / "pool"


@pytest.mark.slow_variants
@graphs
@each_compiler
def test_any_number_of_threads_computes_the_same(name: str, compiler: str, tmp_path: Path) -> None:
    graph = pinned(name)
    feeds = feeds_of(graph, hashes()[name][0])[:1]
    program, expected = program_of(graph, tmp_path, compiler, "native"), interpreted(graph, feeds)
    for threads in "123":
        assert written(program, graph, feeds, threads) == expected, threads


@is_x86
@pytest.mark.slow
@pytest.mark.parametrize("compiler", tools("gcc"))
def test_thread_sanitizer_finds_nothing(compiler: str, tmp_path: Path) -> None:
    graph = pinned("residual")
    feeds = feeds_of(graph, hashes()["residual"][0])[:1]
    program = program_of(graph, tmp_path, compiler, "x86-64:all", "-fsanitize=thread")
    assert written(program, graph, feeds) == interpreted(graph, feeds)


@pytest.mark.slow
@is_x86
@pytest.mark.parametrize("tool", tools("valgrind"))
@pytest.mark.parametrize("compiler", tools("gcc"))
def test_valgrind_finds_nothing(compiler: str, tool: str, tmp_path: Path) -> None:
    graph = pinned("residual")
    feeds = feeds_of(graph, hashes()["residual"][0])[:1]
    program = program_of(graph, tmp_path, compiler, "x86-64")
    runner = (tool, "-q", "--error-exitcode=9")
    assert written(program, graph, feeds, runner=runner) == interpreted(graph, feeds)


@pytest.mark.slow_variants
@pytest.mark.parametrize(
    ("target", "weights"), covering(["x86-64:all", "native", "neon"], ["object", "bin"])
)
def test_the_header_is_c_and_cpp(target: str, weights: str, tmp_path: Path) -> None:
    graph = pinned("residual")
    options = BundleOptions(name="net", target=target, weights=weights, threads=True)
    export_bundle(graph, tmp_path, options)
    for compiler, language in (("gcc", "-std=c99"), ("g++", "-std=c++98")):
        if shutil.which(compiler) is None:
            pytest.skip(f"{compiler} is not installed")
        strict = ("-Wall", "-Wextra", "-pedantic", "-Werror", language, "-pthread")
        header = [compiler, *strict, "-fsyntax-only", "-x", "c" if compiler == "gcc" else "c++"]
        subprocess.run([*header, tmp_path / "net_pool.h"], check=True)
    source = ["gcc", "-Wall", "-Wextra", "-pedantic", "-Werror", "-std=c99", "-fsyntax-only"]
    subprocess.run([*source, tmp_path / "net_pool.c"], check=True)


def test_a_name_may_hold_words_of_the_templates(tmp_path: Path) -> None:
    options = BundleOptions(name="NAMES_UPPER", weights="bin", threads=True)
    export_bundle(pinned("residual"), tmp_path, options)
    text = (tmp_path / "NAMES_UPPER_pool.c").read_text()
    assert "int NAMES_UPPER_pool_run(NAMES_UPPER_pool *pool," in text
    assert "pool->result = NAMES_UPPER_OK;" in text


@pytest.mark.parametrize("target", ["cortex-m4", "wasm32"])
def test_targets_without_linux_have_no_pool(target: str, tmp_path: Path) -> None:
    options = BundleOptions(name="net", target=target, threads=True)
    with pytest.raises(qg.OptionError, match="the pool is for Linux"):
        export_bundle(pinned("residual"), tmp_path, options)
    assert list(tmp_path.iterdir()) == []

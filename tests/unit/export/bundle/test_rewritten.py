"""A bundle written again: all of it or nothing, without files of the earlier one."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantglow as qg
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input
from quantglow.ir.ops import Conv
from quantglow.ir.types import f32
from quantglow.support.errors import FileFormatError
from tests.support.bundled import each_compiler
from tests.support.small_network import small_model, small_samples

STACK = """
#include <stdio.h>
#include "net.h"
#define ROOM 65536
static _Alignas(64) char memory[NET_ARENA_NBYTES];
static float input[NET_INPUT0_NBYTES / sizeof(float)];
static float scores[NET_OUTPUT0_NBYTES / sizeof(float)];
static const void *inputs[NET_INPUT_COUNT] = {input};
static void *outputs[NET_OUTPUT_COUNT] = {scores};

__attribute__((noinline)) static void painted(volatile unsigned char *end, int paint, long *used) {
    for (long i = 128; i < ROOM; i++) {
        if (paint) *(end - i) = 0xA5;
        else if (*(end - i) != 0xA5) *used = i;
    }
}

int main(void) {
    volatile unsigned char here;
    long used = 0;
    net_run(memory, inputs, outputs);
    painted(&here, 1, &used);
    net_run(memory, inputs, outputs);
    painted(&here, 0, &used);
    printf("%ld %ld\\n", used, (long)NET_STACK_NBYTES);
    return 0;
}
"""


@pytest.fixture(scope="module")
def compiled() -> Any:
    samples = small_samples(8)
    return qg.quantize_and_compile(small_model(), samples, progress=False, num_threads=1)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.slow
def test_files_of_the_earlier_bundle_vanish(compiled: Any, tmp_path: Path) -> None:
    compiled.export_bundle(tmp_path, name="net", target="x86-64:all", weights="bin")
    (tmp_path / "net_notes.txt").write_text("mine")
    (tmp_path / "net_avx2.o").write_bytes(b"mine, too")
    compiled.export_bundle(tmp_path, name="net", target="cortex-m4")
    listed = json.loads((tmp_path / "net.json").read_text())["files"]
    assert set(files(tmp_path)) == {*listed, "net.json", "net_notes.txt", "net_avx2.o"}


@pytest.mark.slow_variants
@pytest.mark.parametrize("name", ["main.c", "CMakeLists.txt"])
def test_an_edited_file_is_kept(compiled: Any, tmp_path: Path, name: str) -> None:
    compiled.export_bundle(tmp_path, name="net")
    with (tmp_path / name).open("a") as file:
        file.write("\n")
    before = files(tmp_path)
    for other in ("net", "other"):
        with pytest.raises(qg.OptionError, match=f"{name}' would be overwritten, .* it was edited"):
            compiled.export_bundle(tmp_path, name=other, target="cortex-m4")
    assert files(tmp_path) == before


@pytest.mark.slow
def test_two_bundles_of_a_folder_may_be_written_again(compiled: Any, tmp_path: Path) -> None:
    for name in ("a", "b", "a"):
        compiled.export_bundle(tmp_path, name=name)
        assert name in (tmp_path / "main.c").read_text()
    assert {"a.o", "b.o"} < files(tmp_path).keys()


@pytest.mark.slow
def test_a_full_disk_leaves_the_earlier_bundle(
    compiled: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled.export_bundle(tmp_path, name="net", target="cortex-m4")
    before, usual = files(tmp_path), Path.write_bytes
    left = [2]

    def full(path: Path, data: bytes) -> int:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(28, "No space left on device")
        return usual(path, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(FileFormatError, match="No space left"):
        compiled.export_bundle(tmp_path, name="net", target="x86-64:all")
    monkeypatch.undo()
    assert files(tmp_path) == before


@pytest.mark.slow
def test_a_damaged_manifest_is_that_of_no_bundle(compiled: Any, tmp_path: Path) -> None:
    outside = tmp_path / "outside.o"
    outside.write_bytes(b"")
    folder = tmp_path / "net"
    folder.mkdir()
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    for text in (
        json.dumps({"files": {"a\0b": {"sha256": empty}}}),
        "[]",
        '{"files": 3}',
        "{",
        json.dumps({"files": {"../outside.o": {"sha256": empty}}}),
    ):
        (folder / "net.json").write_text(text)
        compiled.export_bundle(folder, name="net")
        assert outside.exists()


OTHERS = ["all", "stdint", "m", "Clean", "assert", "Complex", "threads", "stdckdint", "unistd"]


@pytest.mark.parametrize("name", OTHERS)
def test_names_of_others_are_refused(compiled: Any, tmp_path: Path, name: str) -> None:
    with pytest.raises(qg.OptionError, match=f"name='{name}' is a target of CMake"):
        compiled.export_bundle(tmp_path, name=name)
    assert not files(tmp_path)


def depthwise() -> qg.CompiledModel:
    """A depthwise convolution, whose kernel calls no function."""
    rng = np.random.default_rng(3)
    shape = (1, 13, 11, 70)
    x = Input(name="x", tensor=f32(*shape))
    w = Constant(name="w", value=rng.standard_normal((7, 7, 1, 70)).astype(np.float32))
    conv = Conv(name="y", x=x, w=w, group=70, pads=(3, 3, 3, 3))
    graph = Graph((x,), (("y", conv),))
    data = [{"x": rng.standard_normal(shape).astype(np.float32)} for _ in range(4)]
    return qg.compile(qg.quantize(graph, qg.profile(graph, data)), num_threads=1)


@pytest.mark.slow_variants
@each_compiler
@pytest.mark.parametrize("target", ["native", "x86-64"])
def test_a_run_takes_no_more_stack_than_is_said(tmp_path: Path, target: str, compiler: str) -> None:
    depthwise().export_bundle(tmp_path, name="net", target=target)
    (tmp_path / "stack.c").write_text(STACK)
    sources = [str(tmp_path / name) for name in ("stack.c", "net.o")]
    command = [compiler, "-O1", "-I", str(tmp_path), *sources, "-o", str(tmp_path / "stack")]
    subprocess.run(command, check=True)
    results = subprocess.run([str(tmp_path / "stack")], capture_output=True, text=True, check=True)
    used, said = np.array(results.stdout.split(), int)
    assert 0 < used <= said, (used, said)

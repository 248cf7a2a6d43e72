"""Kernels that are compiled while weights are rounded."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantglow as qg
from quantglow.codegen.llvm.cache import ObjectCache
from quantglow.interpreter import interpret
from quantglow.runtime.jit.library import KernelLibrary
from quantglow.runtime.native import compilation
from quantglow.runtime.programs import build as precompile
from quantglow.runtime.programs.build import Compiler, kernels_ahead
from quantglow.support.errors import BackendError
from tests.support.free_network import SHAPES, free_model, image
from tests.support.small_network import small_model, small_samples

Threads = list[str]


@pytest.fixture
def compiling(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Threads:
    """The thread that asked for each kernel, in a library without kernels."""
    collected: Threads = []
    asking = [""]
    libraries: dict[Any, KernelLibrary] = {}
    compiled, load_texts = KernelLibrary.compile, KernelLibrary.load_texts

    def library(target: Any) -> KernelLibrary:
        return libraries.setdefault(target, KernelLibrary(target, ObjectCache(tmp_path)))

    def loading(self: KernelLibrary, *arguments: Any, **options: Any) -> list[str]:
        if self in libraries.values():
            asking[0] = threading.current_thread().name
        return load_texts(self, *arguments, **options)

    def recorded(self: KernelLibrary, text: str) -> bytes:
        if self in libraries.values():
            collected.append(asking[0])
        return compiled(self, text)

    monkeypatch.setattr("quantglow.runtime.native.compilation.library", library)
    monkeypatch.setattr(KernelLibrary, "compile", recorded)
    monkeypatch.setattr(KernelLibrary, "load_texts", loading)
    monkeypatch.setattr(precompile, "available_cores", lambda: 2)
    return collected


def test_all_kernels_are_compiled_beside_the_rounding_of_weights(compiling: Threads) -> None:
    data = small_samples()
    compiled = qg.quantize_and_compile(small_model(), data, verify=False)
    assert compiling and all(name.startswith("quantglow-kernels") for name in compiling)
    feeds = {"x": data[0]}
    np.testing.assert_allclose(
        compiled.run(None, feeds)[0], interpret(compiled.graph, feeds)[0], 1e-5
    )


def test_kernels_for_all_shapes_are_compiled_beside_the_rounding_of_weights(
    compiling: Threads,
) -> None:
    data = [image(SHAPES[0], seed) for seed in range(4)]
    compiled: Any = qg.quantize_and_compile(free_model(), data, num_threads=1, verify=False)
    assert [each.program for each in compiled.report.programs] == ["for all shapes"]
    assert compiling and all(name.startswith("quantglow-kernels") for name in compiling)


def test_with_one_core_nothing_runs_beside(
    compiling: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precompile, "available_cores", lambda: 1)
    qg.quantize_and_compile(small_model(), small_samples(), verify=False)
    assert set(compiling) == {threading.current_thread().name}


def test_the_reference_backend_loads_no_kernels(compiling: Threads) -> None:
    graph = qg.import_model(small_model())
    Compiler.of(backend="reference").load_kernels(graph)
    assert not compiling


def test_compiling_the_graph_raises_the_errors_of_llvm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*arguments: Any, **options: Any) -> None:
        raise BackendError("refused")

    monkeypatch.setattr(precompile, "available_cores", lambda: 2)
    monkeypatch.setattr(compilation, "load_kernels", refused)
    monkeypatch.setattr(compilation, "compile_program", refused)
    with pytest.raises(BackendError, match="refused"):
        qg.quantize_and_compile(small_model(), small_samples(), verify=False)


def test_an_error_beside_drops_the_kernels_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The block ends long before a thousand kernels are compiled."""
    begun, checks = threading.Event(), []

    def load_kernels(self: Compiler, graph: qg.Graph, check: Callable[[], object]) -> None:
        for _ in range(1000):
            begun.set()
            check()
            checks.append(1)
            time.sleep(0.02)

    monkeypatch.setattr(precompile, "available_cores", lambda: 2)
    monkeypatch.setattr(Compiler, "load_kernels", load_kernels)
    compiler, graph = Compiler.of("native"), qg.import_model(small_model())

    def interrupted() -> None:
        with kernels_ahead(compiler.load_kernels) as load:
            load(graph)
            begun.wait()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert len(checks) < 500


def test_a_check_before_each_kernel_may_end_the_work(compiling: Threads) -> None:
    calls = []

    def check() -> None:
        calls.append(1)
        if len(calls) == 2:
            raise CancelledError

    with pytest.raises(CancelledError):
        Compiler.of("native").load_kernels(qg.import_model(small_model()), check)
    assert len(compiling) < 2

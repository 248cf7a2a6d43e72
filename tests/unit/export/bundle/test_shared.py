"""A shared library computes the interpreter's integers through ctypes."""

from __future__ import annotations

import ctypes
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantglow as qg
from quantglow.codegen.llvm.targets import level_target
from quantglow.export.bundle import linking as linkers
from quantglow.export.bundle import linking as shared
from quantglow.export.bundle import object_tables as elf
from quantglow.runtime.native.buffers import aligned_bytes
from quantglow.support.errors import BackendError, OptionError
from tests.support.bundled import tools
from tests.support.small_network import small_model, small_samples

LINKERS = ("ld", "ld.lld-19", "cc")


class Facts(ctypes.Structure):
    """``quantglow_facts`` of the header."""

    _fields_ = [
        *((name, ctypes.c_char_p) for name in ("name", "target", "version", "source_hash")),
        *((name, ctypes.c_void_p) for name in ("inputs", "outputs", "kernels")),
        *((name, ctypes.c_int64) for name in ("arena_nbytes", "arena_align", "weights_nbytes")),
        *((name, ctypes.c_int32) for name in ("abi", "input_count", "output_count", "kernels_")),
    ]


@pytest.fixture(scope="module")
def compiled() -> Any:
    return qg.quantize_and_compile(small_model(), small_samples(), progress=False)


def pointers(arrays: list[np.ndarray]) -> Any:
    return (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))


@pytest.mark.slow_variants
@pytest.mark.parametrize("tool", tools(*LINKERS))
def test_every_linker_makes_a_library_that_runs(
    compiled: Any, tmp_path: Path, tool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    actual = lambda name: shutil.which(name) if name == tool else None  # noqa: E731
    monkeypatch.setattr(shared, "which", actual)
    monkeypatch.setattr(linkers, "which", actual)
    compiled.export_bundle(tmp_path, name="net", library="shared")
    library = ctypes.CDLL(str(tmp_path / "libnet.so"))
    facts = Facts.in_dll(library, "net_facts")
    assert (facts.name, facts.input_count, facts.output_count) == (b"net", 1, 2)
    arena = aligned_bytes(facts.arena_nbytes)
    x = small_samples()[1]
    outputs = [np.empty(node.type.shape, np.float32) for _, node in compiled.graph.outputs]
    address = ctypes.c_void_p(arena.ctypes.data)
    assert library.net_run(address, pointers([x]), pointers(outputs)) == 0
    for one, expected in zip(outputs, qg.interpret(compiled.graph, {"x": x}), strict=True):
        np.testing.assert_array_equal(one, expected)


@pytest.mark.slow_variants
@pytest.mark.skipif(not any(linkers.programs("ld.lld")), reason="lld is not installed")
@pytest.mark.parametrize("target", ["neon", "rv64gc"])
def test_libraries_of_other_processors_are_linked(
    compiled: Any, tmp_path: Path, target: str
) -> None:
    compiled.export_bundle(tmp_path, name="net", target=target, library="shared")
    assert elf.read_elf((tmp_path / "libnet.so").read_bytes()).loaded_nbytes > 1000


@pytest.mark.slow
def test_a_missing_linker_is_named(
    compiled: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "which", lambda name: None)
    monkeypatch.setattr(shared, "system_linkers", lambda target: iter(()))
    with pytest.raises(BackendError, match="install binutils or lld"):
        compiled.export_bundle(tmp_path / "net", library="shared")


def test_a_linkers_refusal_is_quoted() -> None:
    with pytest.raises(BackendError, match="made no libnet"):
        shared.link_shared([b"no object"], level_target("x86-64"), "libnet.so")


@pytest.mark.parametrize(
    "options",
    [{"target": "cortex-m4"}, {"target": "wasm32", "weights": "bin"}, {"weights": "c"}],
    ids=str,
)
def test_libraries_are_for_systems_that_load_them(
    compiled: Any, tmp_path: Path, options: dict[str, str]
) -> None:
    with pytest.raises(OptionError, match="library='shared'"):
        compiled.export_bundle(tmp_path / "net", library="shared", **options)

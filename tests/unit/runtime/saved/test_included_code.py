"""Models that carry machine code run without compiling, equal bit for bit, where it fits."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantglow as qg
from quantglow.codegen.llvm.cache import carried_entry
from quantglow.codegen.llvm.targets import LEVELS, runs_here
from quantglow.runtime.jit.library import KernelLibrary
from quantglow.runtime.saved import machine_code as included_code
from quantglow.support.errors import BackendError, FileFormatError, OptionError
from tests.support.free_network import SHAPES, free_model, image
from tests.support.late_products import chosen_rows, late_products
from tests.support.small_network import small_model, small_samples
from tests.unit.importer.onnx.onnx_models import floats
from tests.unit.runtime.saved.test_saving import repacked, resigned

ROOT = Path(__file__).resolve().parents[4]
GENERIC = next(name for name in LEVELS if runs_here(name))
"""The best level of this processor, for any model of it."""


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process without a cache that knows no kernel yet."""
    monkeypatch.setenv("QUANTGLOW_CACHE_DIR", "")
    monkeypatch.setenv("QUANTGLOW_VERIFY", "0")
    monkeypatch.setattr("quantglow.runtime.jit.library.libraries", {})


@pytest.fixture
def forbid_compiling(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A function from whose call on kernels are unknown, and compiling one is an error."""

    def compile_(library: KernelLibrary, text: str) -> bytes:
        raise AssertionError("a kernel was compiled")

    def forbid() -> None:
        monkeypatch.setattr("quantglow.runtime.jit.library.libraries", {})
        monkeypatch.setattr(KernelLibrary, "compile", compile_)

    return forbid


@pytest.fixture(scope="module")
def compiled() -> Any:
    return qg.quantize_and_compile(
        small_model(), small_samples(), num_threads=1, progress=False, verify=False
    )


@pytest.fixture(scope="module")
def saved(compiled: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("code") / "model.qgm"
    compiled.save(path, include_code=["native", GENERIC])
    return path


def outputs(model: Any) -> list[bytes]:
    return [array.tobytes() for x in small_samples(3, seed=9) for array in model(x)]


@pytest.mark.slow_variants
@pytest.mark.parametrize("target", ["native", GENERIC])
def test_included_code_runs_without_compiling(
    compiled: Any, saved: Path, target: str, forbid_compiling: Callable[[], None]
) -> None:
    results = outputs(compiled)
    forbid_compiling()
    assert outputs(qg.load(saved, target, 1, code="require")) == results


def test_the_best_included_level_serves_a_processor_of_another_name(
    saved: Path, monkeypatch: pytest.MonkeyPatch, forbid_compiling: Callable[[], None]
) -> None:
    key_here = included_code.key_here
    monkeypatch.setattr(
        included_code, "key_here", lambda name: "" if name == "native" else key_here(name)
    )
    forbid_compiling()
    loaded: Any = qg.load(saved, num_threads=1, code="require")
    assert loaded.specialisations.target == GENERIC


@pytest.mark.slow
def test_shapes_that_came_before_run_without_compiling(
    tmp_path: Path, forbid_compiling: Callable[[], None]
) -> None:
    first = qg.compile(free_model(), num_threads=1)
    expected = [first.run(None, {"x": image(shape)})[0].tobytes() for shape in SHAPES]
    first.save(tmp_path / "free.qgm", include_code="native")
    forbid_compiling()
    loaded = qg.load(tmp_path / "free.qgm", num_threads=1, code="require")
    results = [loaded.run(None, {"x": image(shape)})[0].tobytes() for shape in SHAPES]
    assert results == expected


def test_code_for_one_late_size_is_not_that_for_others(
    tmp_path: Path, forbid_compiling: Callable[[], None]
) -> None:
    compiled = qg.compile(late_products(), num_threads=1)
    calls = [{"x": chosen_rows(count, count)} for count in (8, 0, 1)]
    expected = [array.tobytes() for feeds in calls for array in compiled.run(None, feeds)]
    compiled.save(tmp_path / "late.qgm", include_code="native")
    forbid_compiling()
    loaded = qg.load(tmp_path / "late.qgm", num_threads=1, code="require")
    assert [a.tobytes() for feeds in calls for a in loaded.run(None, feeds)] == expected


def repeated_rows() -> onnx.ModelProto:
    """Positive elements of ``x`` that is repeated ``n`` times, and a product of them: the values of
    an input decide shapes, and the elements do."""
    node, info = helper.make_node, helper.make_tensor_value_info
    nodes = [
        node("Cast", ["n"], ["count"], to=TensorProto.INT64),
        node("Tile", ["x", "count"], ["all"]),
        node("Relu", ["all"], ["positive"]),
        node("NonZero", ["positive"], ["places"]),
        node("Transpose", ["places"], ["index"], perm=[1, 0]),
        node("GatherND", ["positive", "index"], ["values"]),
        node("Reshape", ["values", "column"], ["rows"]),
        node("MatMul", ["rows", "w"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "repeated",
        [info("x", TensorProto.FLOAT, ["N", 4]), info("n", TensorProto.INT32, [2])],
        [info("y", TensorProto.FLOAT, None)],
        [
            numpy_helper.from_array(np.array([-1, 1]), "column"),
            numpy_helper.from_array(floats(1, 3), "w"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_values_of_inputs_that_decide_are_known_where_the_code_is_made(
    tmp_path: Path, forbid_compiling: Callable[[], None]
) -> None:
    first = qg.compile(repeated_rows(), num_threads=1)
    calls = [{"x": floats(3, 4), "n": np.int32([times, 1])} for times in (2, 3)]
    expected = [first.run(None, feeds)[0].tobytes() for feeds in calls]
    first.save(tmp_path / "late.qgm", include_code="native")
    forbid_compiling()
    loaded = qg.load(tmp_path / "late.qgm", num_threads=1, code="require")
    assert [loaded.run(None, feeds)[0].tobytes() for feeds in calls] == expected


RUN = """
import sys
import numpy as np
import quantglow as qg

model = qg.load(sys.argv[1], num_threads=1, code=sys.argv[2])
model.run(None, {"x": np.zeros((1, 2, 6, 6), np.float32)})
print("llvmlite.binding" in sys.modules)
"""


@pytest.mark.slow_variants
@pytest.mark.parametrize(("code", "is_loaded"), [("require", "False"), ("ignore", "True")])
def test_a_fresh_process_runs_included_code_without_llvm(
    saved: Path, code: str, is_loaded: str
) -> None:
    command = [sys.executable, "-c", RUN, str(saved), code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [is_loaded]


def test_code_is_ignored_unless_it_is_asked_for(
    saved: Path, forbid_compiling: Callable[[], None]
) -> None:
    forbid_compiling()
    with pytest.raises(AssertionError, match="a kernel was compiled"):
        qg.load(saved, num_threads=1)


MISFITS = {
    "another version": {"versions": "0" * 64},
    "another processor": {"targets": {"native": "0" * 64, GENERIC: "1" * 64}},
    "no target": {"targets": {}},
    "other threads": {"threads": 3},
    "another schedule": {"schedule": "memory"},
}


def changed(saved: Path, **changes: Any) -> Path:
    def edit(members: dict[str, bytes]) -> None:
        text = {**json.loads(members["code.json"]), **changes}
        members["code.json"] = json.dumps(text).encode()
        resigned(members)

    return repacked(saved, edit)


@pytest.mark.parametrize("changes", MISFITS.values(), ids=MISFITS)
def test_code_that_does_not_fit_is_refused_or_compiled(
    compiled: Any, saved: Path, changes: dict[str, Any]
) -> None:
    other = changed(saved, **changes)
    with pytest.raises(FileFormatError, match="cannot be used"):
        qg.load(other, num_threads=1, code="require")
    assert outputs(qg.load(other, num_threads=1, code="use")) == outputs(compiled)


DAMAGE = {
    "sizes": {"entries": [["quantglow_kernel_0", 3]]},
    "negative": {"entries": [["a", -1], ["b", 1]]},
    "no pairs": {"entries": [1]},
    "no names": {"targets": 3},
    "no threads": {"threads": "many"},
}


@pytest.mark.parametrize("changes", DAMAGE.values(), ids=DAMAGE)
def test_damaged_lists_of_entries_are_refused(saved: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(FileFormatError):
        qg.load(changed(saved, **changes), num_threads=1, code="use")


def test_a_file_without_code_is_refused_where_code_is_required(
    compiled: Any, tmp_path: Path
) -> None:
    compiled.save(tmp_path / "plain.qgm")
    with pytest.raises(FileFormatError, match="without include_code"):
        qg.load(tmp_path / "plain.qgm", num_threads=1, code="require")
    assert qg.load(tmp_path / "plain.qgm", num_threads=1, code="use")


def test_entries_go_with_the_model_that_brought_them(saved: Path) -> None:
    (name, _), *_ = json.loads(members_of(saved)["code.json"])["entries"]
    loaded = qg.load(saved, num_threads=1, code="require")
    assert carried_entry(name) is not None
    del loaded
    gc.collect()
    assert carried_entry(name) is None


def members_of(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_code_for_one_thread_is_not_that_for_two(saved: Path) -> None:
    with pytest.raises(FileFormatError, match=r"num_threads=1 .* not for num_threads=2"):
        qg.load(saved, num_threads=2, code="require")
    assert outputs(qg.load(saved, num_threads=2, code="use")) == outputs(qg.load(saved))


@pytest.mark.slow_variants
@pytest.mark.parametrize("threads", [2, 3])
def test_code_for_several_threads_runs_without_compiling(
    compiled: Any, threads: int, tmp_path: Path, forbid_compiling: Callable[[], None]
) -> None:
    results = outputs(compiled)
    compiled.with_num_threads(threads).save(tmp_path / "model.qgm", include_code="native")
    forbid_compiling()
    loaded = qg.load(tmp_path / "model.qgm", num_threads=threads, code="require")
    assert outputs(loaded) == results


def test_a_model_that_was_not_run_has_no_code_to_include(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="was not run"):
        qg.compile(free_model()).save(tmp_path / "free.qgm", include_code="native")


def test_targets_that_do_not_run_here_are_refused(compiled: Any, tmp_path: Path) -> None:
    with pytest.raises(BackendError):
        compiled.save(tmp_path / "model.qgm", include_code="no such target")
    assert not (tmp_path / "model.qgm").exists()


def test_models_of_other_backends_have_no_code_to_include(tmp_path: Path) -> None:
    other = qg.compile(small_model(), backend="reference")
    with pytest.raises(OptionError, match="backend='llvm'"):
        other.save(tmp_path / "model.qgm", include_code="native")
    assert not list(tmp_path.iterdir())

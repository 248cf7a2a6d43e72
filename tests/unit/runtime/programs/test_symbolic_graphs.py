"""Graphs for all shapes in files, whole and damaged."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import quantglow as qg
from quantglow.ir.ops import Conv
from quantglow.support.errors import FileFormatError
from tests.support.combinations import mark_slow
from tests.support.forged_file import forged
from tests.support.free_network import free_model, image
from tests.unit.importer.onnx.onnx_models import floats
from tests.unit.runtime.saved.test_saving import repacked, resigned
from tests.unit.transforms.test_partition import Interpreted

SHAPES = ((1, 3, 8, 8), (1, 3, 13, 18), (4, 3, 9, 20))
TEXT = "general/0.txt"


@pytest.fixture(scope="module")
def compiled() -> Any:
    samples = [image(SHAPES[0], seed) for seed in range(4)]
    return qg.quantize_and_compile(free_model(), samples, num_threads=1, progress=False)


@pytest.fixture
def saved(compiled: Any, tmp_path: Path) -> Path:
    compiled.save(tmp_path / "m.qgm")
    return tmp_path / "m.qgm"


def assert_computes(path: Path, compiled: Any) -> None:
    for threads in (1, 2, 3):
        loaded = qg.load(path, num_threads=threads)
        for shape in SHAPES:
            x = image(shape, 7)
            for value, expected in zip(loaded(x), compiled(x), strict=True):
                np.testing.assert_array_equal(value, expected)


@pytest.mark.slow
def test_new_shapes_need_no_importer(
    compiled: Any, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("quantglow.api.models.families", "quantglow.importer.onnx"):
        monkeypatch.setitem(sys.modules, name, None)
    loaded = qg.load(saved, num_threads=1)
    for shape in SHAPES:
        assert loaded.specialisations.at({"x": image(shape)}).is_general
    assert_computes(saved, compiled)


def test_a_loaded_model_keeps_them(saved: Path, tmp_path: Path) -> None:
    loaded = qg.load(saved, num_threads=1)
    loaded.save(tmp_path / "again.qgm")
    shutil.move(tmp_path / "again.qgm", saved)
    assert len(loaded.specialisations.opened.general) == 2
    assert len(qg.load(saved).specialisations.opened.general) == 2


ENTRIES: dict[str, Callable[[dict[str, Any]], object]] = {
    "no inputs": lambda entry: entry.pop("inputs"),
    "other inputs": lambda entry: entry["inputs"][0].__setitem__(0, "z"),
    "other sizes": lambda entry: entry["sizes"].update(H=1),
    "huge sizes": lambda entry: entry["sizes"].update(H=2**40),
    "no number": lambda entry: entry["sizes"].update(H="x"),
    "a condition that fails": lambda entry: entry["conditions"].append("H-9 >= 0"),
    "no condition": lambda entry: entry["conditions"].append("H"),
    "another symbol": lambda entry: entry["conditions"].append("Q-9 >= 0"),
    "a division by 0": lambda entry: entry["conditions"].append("floor(H,W-W) >= 0"),
    "another batch": lambda entry: entry.update(batch="Q"),
    "a batch of another axis": lambda entry: entry.update(batch="H"),
    "other outputs": lambda entry: entry.update(outputs=["z"]),
}


@pytest.mark.parametrize("case", ENTRIES)
def test_damaged_entries_are_refused(saved: Path, case: str) -> None:
    def edit(members: dict[str, bytes]) -> None:
        free = json.loads(members["free.json"])
        ENTRIES[case](free["general"][0])
        members["free.json"] = json.dumps(free).encode()
        resigned(members)

    with pytest.raises(FileFormatError, match="Remedy"):
        qg.load(repacked(saved, edit), num_threads=1)


@pytest.mark.slow
@pytest.mark.parametrize("threads", mark_slow([1, 2, 3], {2}))
def test_a_condition_that_one_sample_divides_by_0_does_not_hold_for_it(
    compiled: Any, saved: Path, threads: int
) -> None:
    """A divisor is proven for two samples and more; a piece of a batch was one sample, and the
    call ended in a ``ZeroDivisionError``."""

    def edit(members: dict[str, bytes]) -> None:
        free = json.loads(members["free.json"])
        entry = next(entry for entry in free["general"] if entry["batch"] is not None)
        entry["conditions"].append(f"floor(9,{entry['batch']}-1) >= 0")
        members["free.json"] = json.dumps(free).encode()
        resigned(members)

    loaded: Any = qg.load(repacked(saved, edit), num_threads=threads)
    for shape in ((4, 3, 9, 20), (2, 3, 64, 64), (12, 3, 64, 64)):
        x = image(shape, 7)
        for value, expected in zip(loaded(x), compiled(x), strict=True):
            np.testing.assert_array_equal(value, expected)
        loaded.has_independent_samples({"x": shape}, range(1, 5))


def test_the_batch_of_a_file_is_derived_again(compiled: Any, saved: Path) -> None:
    loaded: Any = qg.load(saved, num_threads=1)
    for graph in loaded.specialisations.opened.general:
        assert graph.is_read
        assert graph.batch == graph.claimed_batch


def test_a_batch_whose_samples_depend_on_each_other_is_none(tmp_path: Path) -> None:
    reversed_rows = "starts=({T-1},), sizes=({T},), steps=(-1,)"
    for line, batch in (("Relu(x='x')", "T"), (f"Slice(x='x', {reversed_rows})", None)):
        path = forged(
            tmp_path / "f.qgm", f"'y': f32[{{T}}] = {line}\noutput 'y' = 'y'\n", batch="T"
        )
        loaded: Any = qg.load(path, num_threads=2)
        (graph,) = loaded.specialisations.opened.general
        assert (graph.claimed_batch, graph.batch) == ("T", batch)


def test_outputs_of_another_type_than_the_model_declares_are_refused(tmp_path: Path) -> None:
    """The model itself answers."""
    cast = "Elementwise(args=('x',), expression=Expr('int64($0)'), out=ElementType('i64'))"
    path = forged(tmp_path / "f.qgm", f"'y': i64[{{T}}] = {cast}\noutput 'y' = 'y'\n")
    loaded: Any = qg.load(path, num_threads=1)
    (graph,) = loaded.specialisations.opened.general
    with pytest.raises(FileFormatError, match="other inputs, outputs"):
        graph.at(graph.hints)
    for length in (8, 9):
        x = np.arange(-2, length - 2, dtype=np.float32)
        np.testing.assert_array_equal(loaded(x), np.maximum(x, 0))


@pytest.mark.parametrize("dims", [["N", 5], ["N", 4, 1], [1, 4]])
def test_models_that_declare_other_sizes_of_outputs_are_loaded(dims: Any, tmp_path: Path) -> None:
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", ["N", 4]), ("y", dims))
    )
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    compiled = qg.compile(model, num_threads=1)
    shown = [compiled(floats(length, 4)).shape for length in (3, 2)]
    compiled.save(tmp_path / "m.qgm")
    loaded: Any = qg.load(tmp_path / "m.qgm", num_threads=1)
    assert [loaded(floats(length, 4)).shape for length in (3, 2)] == shown == [(3, 4), (2, 4)]


TEXTS: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda text: text[: len(text) // 2],
    "nothing": lambda text: b"",
    "other sizes": lambda text: text.replace(b"{H}", b"{H+1}"),
    "an unknown symbol": lambda text: text.replace(b"{H}", b"{Q}"),
    "no expression": lambda text: text.replace(b"{H}", b"{H.real}"),
    "a division by 0": lambda text: text.replace(b"{H}", b"{floor(H,W-W)}"),
    "a deep sum": lambda text: text.replace(b"{H}", b"{" + b"H+" * 1500 + b"H}"),
    "a plain size": lambda text: text.replace(b"{H}", b"8"),
}


@pytest.mark.slow_variants
@pytest.mark.parametrize("case", TEXTS)
def test_damaged_texts_leave_the_source(compiled: Any, saved: Path, case: str) -> None:
    def edit(members: dict[str, bytes]) -> None:
        members[TEXT] = TEXTS[case](members[TEXT])
        resigned(members)

    assert_computes(repacked(saved, edit), compiled)


def test_the_reference_backend_runs_the_graph_of_the_shape(compiled: Any, saved: Path) -> None:
    x = image(SHAPES[2], 7)
    loaded = qg.load(saved, backend="reference")
    for value, expected in zip(loaded(x), compiled(x), strict=True):
        np.testing.assert_array_equal(value, expected)


def test_a_users_code_generator_is_asked(compiled: Any, saved: Path) -> None:
    x, selected = image(SHAPES[2], 7), Interpreted((Conv,))
    loaded = qg.load(saved, num_threads=1, backends=[selected])
    for value, expected in zip(loaded(x), compiled(x), strict=True):
        np.testing.assert_array_equal(value, expected)
    served = loaded.report.programs
    assert {(p.program, p.elsewhere) for p in served} == {
        ("for this shape", "2 Conv in interpreted")
    }

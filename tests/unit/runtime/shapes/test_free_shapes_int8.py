"""One int8 model, calibrated on samples of several shapes, serves every shape."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import quantglow as qg
from quantglow.runtime.saved import archives
from quantglow.support.errors import CalibrationError, FileFormatError, OptionError
from tests.support.free_network import SHAPES, free_model, image, scaled_model, sum_model

MAIN = (1, 3, 8, 12)
SAMPLES = [image(shape, seed) for seed in range(2) for shape in (*SHAPES, MAIN)]


@pytest.fixture(scope="module")
def compiled() -> qg.CompiledModel:
    return qg.quantize_and_compile(free_model(), SAMPLES, num_threads=1, progress=False)


@pytest.mark.slow_variants
@pytest.mark.parametrize("shape", [*SHAPES, (2, 3, 7, 7)])
def test_every_shape_gives_the_integers_of_its_graph(compiled: Any, shape: Any) -> None:
    feeds = {"x": image(shape, 9)}
    graph = compiled.specialisations.at(feeds).graph
    for value, expected in zip(compiled.run(None, feeds), qg.interpret(graph, feeds), strict=True):
        np.testing.assert_array_equal(value, expected)


@pytest.mark.parametrize("shape", [*SHAPES, (2, 3, 7, 7)])
def test_every_shape_is_close_to_float(compiled: Any, shape: Any) -> None:
    session = onnxruntime.InferenceSession(free_model().SerializeToString())
    feeds = {"x": image(shape, 9)}
    for value, expected in zip(compiled.run(None, feeds), session.run(None, feeds), strict=True):
        assert np.abs(value - expected).max() < 0.1 * np.abs(expected).max()


@pytest.mark.slow
def test_weights_that_the_width_scales_are_rounded_for_each_width(tmp_path: Path) -> None:
    main, wider = (1, 3, 16, 16), image((1, 3, 16, 32), 9)
    samples = [image(main, seed) for seed in range(12)]
    compiled = qg.quantize_and_compile(scaled_model(), samples, num_threads=1, progress=False)
    session = onnxruntime.InferenceSession(scaled_model().SerializeToString()).run(
        None, {"x": wider}
    )
    compiled_model = compiled(wider)[0]
    assert np.linalg.norm(compiled_model - session[0]) < 0.03 * np.linalg.norm(session[0])
    compiled.save(tmp_path / "scaled.qgm")
    loaded = qg.load(tmp_path / "scaled.qgm", num_threads=1)
    np.testing.assert_array_equal(loaded(wider)[0], compiled_model)


def test_every_shape_has_the_same_layers_in_int8(compiled: Any) -> None:
    def kinds(shape: Any) -> list[tuple[str, str]]:
        graph = compiled.specialisations.at({"x": image(shape)}).graph
        return [(node.name, str(node.type.element)) for node in graph.compute_nodes()]

    assert kinds((1, 3, 8, 8)) == kinds((3, 3, 6, 5))
    assert any(name == "c1" or "i8" in kind for name, kind in kinds((1, 3, 8, 8)))


def test_the_report_is_about_the_shape_of_most_data(compiled: Any) -> None:
    assert compiled.graph.inputs[0].type.shape == MAIN
    assert compiled.report.samples == 4


@pytest.fixture(scope="module")
def unchecked() -> qg.CompiledModel:
    """Calibration uses all samples, because there is no check."""
    return qg.quantize_and_compile(
        free_model(), SAMPLES, num_threads=1, progress=False, verify=False
    )


def test_the_profile_knows_the_shapes(unchecked: Any) -> None:
    counts = {case.shape_map["x"]: count for case, count in unchecked.profile.cases.items()}
    expected = {shape: 4 if shape == MAIN else 2 for shape in SHAPES if shape[0] == 1}
    assert counts == expected | {(1, 3, 5, 9): 4, (1, 3, 2, 2): 6}


def test_a_profile_alone_serves_every_shape(compiled: Any, tmp_path: Any) -> None:
    path = tmp_path / "free.profile.npz"
    compiled.profile.save(path)
    again = qg.quantize_and_compile(free_model(), path, num_threads=1)
    assert again.graph.inputs[0].type.shape == MAIN
    assert again(image((2, 3, 4, 4)))[0].shape == (2, 4)


def test_profiles_of_different_shapes_merge_exactly(unchecked: Any) -> None:
    parts = [qg.profile(free_model(), [sample], progress=False) for sample in SAMPLES]
    assert qg.Profile.merged(parts) == unchecked.profile
    assert qg.Profile.merged(parts[::-1]) == unchecked.profile


def test_a_profile_without_shapes_asks_for_them(compiled: Any) -> None:
    known = compiled.profile
    bare = qg.Profile(known.source_hash, known.histograms, known.samples)
    with pytest.raises(OptionError, match=r"x: \(N, 3, H, W\).*Remedy: .*input_shapes"):
        qg.quantize_and_compile(free_model(), bare)
    fixed = qg.quantize_and_compile(
        free_model(), bare, input_shapes={"x": (1, 3, 4, 4)}, num_threads=1
    )
    assert fixed.get_inputs()[0].shape == [1, 3, 4, 4]


def test_samples_are_cut_along_a_free_batch() -> None:
    whole = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
    model = sum_model(["N", 5])
    profile = qg.profile(model, whole, progress=False)
    assert profile == qg.profile(model, [whole[:4], whole[4:]], progress=False)
    assert profile.samples == 6


def test_samples_that_disagree_in_a_symbol_are_refused() -> None:
    with pytest.raises(CalibrationError, match=r"sample 0 .*'L' is 3 in input 'x0' but 1"):
        qg.profile(
            sum_model(["N", "L"], ["N", "L"]),
            [(np.ones((1, 3), np.float32), np.ones((1, 1), np.float32))],
        )


def test_samples_the_operators_refuse_are_named() -> None:
    x, y = np.ones(2, np.float32), np.ones(3, np.float32)
    with pytest.raises(CalibrationError, match=r"sample 1 .*node 'sum'.*Remedy"):
        qg.profile(sum_model([None, "A"], ["?", "B"]), [(x[None], x[None]), (x[None], y[None])])


@pytest.mark.slow
def test_accuracy_control_tries_models_of_free_shape() -> None:
    def validation(model: Any) -> float:
        return -float(np.abs(model(image((2, 3, 4, 6)))[0]).max() > 1e9)

    compiled = qg.quantize_and_compile(
        free_model(), SAMPLES, max_drop=0.5, validation_fn=validation, num_threads=1
    )
    assert compiled.get_inputs()[0].shape == ["N", 3, "H", "W"]


@pytest.mark.slow
def test_a_contract_holds_at_other_shapes_by_the_same_steps() -> None:
    strict = qg.quantize_and_compile(free_model(), SAMPLES, max_drop=1e-3, num_threads=1)
    raised = {n.name: n.precision for n in strict.report.layers}
    assert {"int16", "float"} & set(raised.values())
    x = image((2, 3, 4, 6))
    exact = qg.compile(free_model(), num_threads=1)(x)[0]
    assert np.linalg.norm(strict(x)[0] - exact) < 5e-3 * np.linalg.norm(exact)


@pytest.fixture(scope="module")
def saved(compiled: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("free") / "free.qgm"
    compiled.save(path)
    return path


@pytest.mark.parametrize("shape", [MAIN, *SHAPES, (2, 3, 7, 7)])
def test_a_loaded_model_gives_the_same_integers_at_every_shape(
    compiled: Any, saved: Path, shape: Any
) -> None:
    loaded = qg.load(saved, num_threads=1)
    feeds = {"x": image(shape, 5)}
    for value, expected in zip(loaded.run(None, feeds), compiled.run(None, feeds), strict=True):
        np.testing.assert_array_equal(value, expected)


def test_a_loaded_model_describes_its_free_dimensions(compiled: Any, saved: Path) -> None:
    loaded = qg.load(saved, num_threads=1)
    assert loaded.get_inputs() == compiled.get_inputs()
    assert loaded.get_outputs() == compiled.get_outputs()


def test_a_loaded_model_saves_the_same_file(saved: Path, tmp_path: Path) -> None:
    qg.load(saved, num_threads=1).save(tmp_path / "again.qgm")
    with zipfile.ZipFile(saved) as one, zipfile.ZipFile(tmp_path / "again.qgm") as other:
        for name in ("graph.txt", "free.json", "source.onnx"):
            assert one.read(name) == other.read(name)


def test_a_float_model_keeps_its_free_dimensions_in_a_file(tmp_path: Path) -> None:
    compiled = qg.compile(free_model(), num_threads=1)
    compiled.run(None, {"x": image(MAIN)})
    compiled.save(tmp_path / "float.qgm")
    loaded = qg.load(tmp_path / "float.qgm", num_threads=1)
    feeds = {"x": image((2, 3, 4, 4))}
    np.testing.assert_array_equal(loaded.run(None, feeds)[0], compiled.run(None, feeds)[0])


def test_a_model_of_fixed_shapes_is_saved_without_its_source(tmp_path: Path) -> None:
    fixed = qg.compile(free_model(), input_shapes={"x": MAIN}, num_threads=1)
    fixed.save(tmp_path / "fixed.qgm")
    with zipfile.ZipFile(tmp_path / "fixed.qgm") as archive:
        assert "source.onnx" not in archive.namelist()


def edited(saved: Path, folder: Path, edit: Callable[[dict[str, Any]], object]) -> Path:
    """The file with another ``free.json`` and checksums that fit."""
    with zipfile.ZipFile(saved) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    manifest, free = json.loads(members["manifest.json"]), json.loads(members["free.json"])
    edit(free)
    members["free.json"] = json.dumps(free).encode()
    manifest["members"]["free.json"] = archives.describe(members["free.json"])
    manifest["sha256"] = archives.manifest_digest(manifest)
    members["manifest.json"] = json.dumps(manifest).encode()
    path = folder / "edited.qgm"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


SIGNATURES: dict[str, Callable[[dict[str, Any]], object]] = {
    "missing": lambda free: free.pop("signature"),
    "other names": lambda free: free["signature"]["inputs"][0].update(name="z"),
    "other shape": lambda free: free["signature"]["inputs"][0].update(dims=["N", 4, "H", "W"]),
    "no dimension": lambda free: free["signature"]["inputs"][0].update(dims=[0.5, -1]),
    "no type": lambda free: free["signature"]["outputs"][0].update(dtype="f8"),
    "no text": lambda free: free["signature"]["outputs"][0].update(declared=[]),
    "no list": lambda free: free.update(signature=3),
}


@pytest.mark.parametrize("case", SIGNATURES)
def test_a_damaged_signature_is_refused(saved: Path, tmp_path: Path, case: str) -> None:
    with pytest.raises(FileFormatError, match=r"free dimensions.*Remedy"):
        qg.load(edited(saved, tmp_path, SIGNATURES[case]))


DECISIONS: dict[str, Callable[[dict[str, Any]], object]] = {
    "missing": lambda free: free["decisions"].pop("int8"),
    "scale": lambda free: free["decisions"]["elements"].update(x=["i8", "-0x1p0", 0]),
    "zero point": lambda free: free["decisions"]["elements"].update(x=["i8", "0x1p0", 300]),
    "type": lambda free: free["decisions"]["elements"].update(x=["i32", "0x1p0", 0]),
    "no map": lambda free: free["decisions"].update(reasons=[1]),
    "large scale": lambda free: free["decisions"]["elements"].update(x=["i8", "0x1p99999", 0]),
    "infinite zero point": lambda free: free["decisions"]["elements"].update(
        x=["i8", "0x1p0", float("inf")]
    ),
    "factor": lambda free: free["decisions"]["factors"].update(x=["-0x1p0"]),
}


@pytest.mark.parametrize("case", DECISIONS)
def test_damaged_decisions_end_in_a_typed_error(saved: Path, tmp_path: Path, case: str) -> None:
    loaded = qg.load(edited(saved, tmp_path, DECISIONS[case]), num_threads=1)
    with pytest.raises(FileFormatError, match=r"decisions of the quantizer are damaged.*Remedy"):
        loaded.specialisations.graph_for({"x": (1, 3, 3, 3)})


def test_an_empty_batch_gives_empty_results_built_and_loaded(tmp_path: Path) -> None:
    dims: list[str | int | None] = ["N", 3]
    samples = [(image((2, 3), seed), image((2, 3), seed + 50)) for seed in range(4)]
    compiled = qg.quantize_and_compile(sum_model(dims, dims), samples, progress=False)
    compiled.save(tmp_path / "sum.qgm")
    nothing = image((0, 3))
    for model in (compiled, qg.load(tmp_path / "sum.qgm")):
        network = model(nothing, nothing)
        assert (network.shape, network.dtype) == ((0, 3), np.float32)

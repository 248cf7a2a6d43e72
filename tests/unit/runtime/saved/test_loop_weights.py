"""Weights of a loop stand once in a file, as its int8 body has them."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import quantglow as qg
from quantglow.runtime.saved.archives import (
    BODIES,
    FREE,
    GRAPH,
    LOOPS_VERSION,
    SOURCE,
    body_member,
)
from tests.support.attending_loop import LAYERS, attending_loop, feeds_of
from tests.support.combinations import mark_slow
from tests.unit.runtime.saved.test_saved_versions import FILES as SAVED_FILES
from tests.unit.runtime.saved.test_saved_versions import manifest_of
from tests.unit.runtime.saved.test_saving import repacked, resigned

TRIPS = 70


def model_with(behind: bool, as_nodes: bool) -> onnx.ModelProto:
    """The loop; ``as_nodes``: its weights are Constants in its body."""
    model = attending_loop(TRIPS, behind=behind)
    if as_nodes:
        tensors = [t for t in model.graph.initializer if t.name in LAYERS]
        body = next(a.g for n in model.graph.node for a in n.attribute if a.name == "body")
        nodes = [onnx.helper.make_node("Constant", [], [t.name], value=t) for t in tensors]
        nodes += list(body.node)
        del body.node[:]
        body.node.extend(nodes)
        for tensor in tensors:
            model.graph.initializer.remove(tensor)
    return model


@pytest.fixture(
    scope="module",
    params=mark_slow([(False, False), (True, False), (False, True)], [(False, True)]),
)
def saved(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[onnx.ModelProto, Any, Path]:
    model, path = model_with(*request.param), tmp_path_factory.mktemp("loop") / "m.qgm"
    samples = [feeds_of(model, seed) for seed in range(4)]
    options: dict[str, Any] = {"num_threads": 1, "effort": "fast", "verify": False}
    compiled = qg.quantize_and_compile(model, samples, progress=False, **options)
    assert any("in int8, calibrated" in note for note in compiled.report.notes)
    compiled.save(path)
    return model, compiled, path


def test_weights_of_the_body_stand_in_the_file_of_the_body(saved: Any) -> None:
    model, _, path = saved
    assert manifest_of(path)["version"] == LOOPS_VERSION
    with zipfile.ZipFile(path) as archive:
        places = json.loads(archive.read(FREE))["weights"]
        parts = [archive.read(name) for name in (SOURCE, GRAPH)]
    assert {*LAYERS} <= places.keys()
    assert any(places[name]["graph"].startswith("final/") for name in LAYERS)
    for name in LAYERS:
        data = onnx.numpy_helper.from_array(weight_of(model, name)).raw_data
        assert not any(data in part for part in parts)


def weight_of(model: onnx.ModelProto, name: str) -> np.ndarray:
    """A weight of the loop, wherever it is."""
    body = next(a.g for n in model.graph.node for a in n.attribute if a.name == "body")
    nodes = [n.attribute[0].t for n in body.node if n.op_type == "Constant"]
    tensors = [t for t in (*model.graph.initializer, *nodes) if t.name == name]
    return onnx.numpy_helper.to_array(tensors[0])


def test_a_loaded_loop_gives_the_same_numbers(saved: Any, tmp_path: Path) -> None:
    model, compiled, path = saved
    loaded = qg.load(path, num_threads=2)
    loaded.save(tmp_path / "again.qgm")
    assert (tmp_path / "again.qgm").stat().st_size < 1.05 * path.stat().st_size
    feeds = feeds_of(model, 7)
    for other in (loaded, qg.load(tmp_path / "again.qgm", num_threads=1)):
        for one, another in zip(compiled.run(None, feeds), other.run(None, feeds), strict=True):
            np.testing.assert_array_equal(one, another)


def test_onnxruntime_runs_the_loop_with_the_weights_of_the_file(saved: Any) -> None:
    """It runs where the body has no program, before the model is saved and after it is loaded."""
    model, compiled, path = saved
    feeds, results = feeds_of(model, 8), []
    for each in (compiled, qg.load(path, num_threads=1)):
        each.run(None, feeds)
        (driver,) = each.specialisations.compiler.drivers
        *_, loop = driver._loops.values()
        results.append(loop.session.run({name: feeds[name] for name in loop.session.input_names}))
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)


def other_body(members: dict[str, bytes]) -> None:
    """The body is that of no loop of the model."""
    members[body_member(0)] = (SAVED_FILES / "version12.qgm").read_bytes()


def no_body(members: dict[str, bytes]) -> None:
    """The body is no file."""
    members[body_member(0)] = members[body_member(0)][:-100]


DAMAGE: dict[str, tuple[Any, dict[str, Any]]] = {
    "a body of another model": (other_body, {}),
    "no body": (no_body, {}),
    "a loop more": (lambda members: None, {BODIES: ["final", "other"]}),
    "a loop twice": (lambda members: None, {BODIES: ["final", "final"]}),
    "no list": (lambda members: None, {BODIES: 3}),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_bodies_are_refused(saved: Any, kind: str) -> None:
    model, _, path = saved
    edit, changes = DAMAGE[kind]

    def damage(members: dict[str, bytes]) -> None:
        edit(members)
        resigned(members, **changes)

    with pytest.raises(qg.FileFormatError, match="Remedy"):
        qg.load(repacked(path, damage), num_threads=1).run(None, feeds_of(model, 1))

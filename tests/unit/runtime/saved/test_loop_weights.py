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
from quantglow.runtime.saved.archives import BODY, REST, TAIL, TAIL_WEIGHTS
from tests.support.attending_loop import LAYERS, attending_loop, feeds_of
from tests.support.combinations import mark_slow

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
    assert isinstance(compiled, qg.PartlyCompiledModel) and compiled.staged is not None
    assert compiled.staged.loop is not None and compiled.staged.loop.is_int8
    compiled.save(path)
    return model, compiled, path


@pytest.mark.slow
def test_the_tail_has_no_weights_of_the_body(saved: Any) -> None:
    _, _, path = saved
    with zipfile.ZipFile(path) as archive:
        places = json.loads(archive.read(TAIL_WEIGHTS))
        tail = archive.read(TAIL)
    assert {*LAYERS} <= places.keys()
    assert all(places[name]["graph"].startswith((BODY, REST)) for name in LAYERS)
    for name in LAYERS:
        assert onnx.numpy_helper.from_array(weight_of(saved[0], name)).raw_data not in tail


def weight_of(model: onnx.ModelProto, name: str) -> np.ndarray:
    """A weight of the loop, wherever it is."""
    body = next(a.g for n in model.graph.node for a in n.attribute if a.name == "body")
    nodes = [n.attribute[0].t for n in body.node if n.op_type == "Constant"]
    tensors = [t for t in (*model.graph.initializer, *nodes) if t.name == name]
    return onnx.numpy_helper.to_array(tensors[0])


@pytest.mark.slow
def test_a_loaded_loop_gives_the_same_numbers(saved: Any, tmp_path: Path) -> None:
    model, compiled, path = saved
    loaded = qg.load(path, num_threads=2)
    loaded.save(tmp_path / "again.qgm")
    assert (tmp_path / "again.qgm").stat().st_size < 1.05 * path.stat().st_size
    feeds = feeds_of(model, 7)
    for other in (loaded, qg.load(tmp_path / "again.qgm", num_threads=1)):
        for one, another in zip(compiled.run(None, feeds), other.run(None, feeds), strict=True):
            np.testing.assert_array_equal(one, another)


@pytest.mark.slow
def test_onnxruntime_runs_the_loop_with_the_weights_of_the_file(saved: Any) -> None:
    """It runs where the body has no program, before the model is saved and after it is loaded."""
    model, compiled, path = saved
    loaded, feeds = qg.load(path, num_threads=1), feeds_of(model, 8)
    assert isinstance(loaded, qg.PartlyCompiledModel)
    results = []
    for each in (compiled, loaded):
        assert each.staged is not None and each.staged.loop is not None
        session = each.staged.loop.session
        reads = {name: feeds[name] for name in session.input_names if name in feeds}
        assert reads.keys() == {*session.input_names}
        results.append(session.run(reads))
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)

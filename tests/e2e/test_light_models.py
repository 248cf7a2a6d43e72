"""The nine networks of onnx's own test data, with onnxruntime's results.

The files store every weight as a ConstantOfShape, so that all channels are equal and the outputs
constant.  Random weights of the same shapes replace them, so an error in any layer shows.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from quantglow.importer.onnx import import_model
from quantglow.interpreter import interpret

FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
NETWORKS = {
    "bvlc_alexnet": (1, 1000),
    "densenet121": (1, 1000, 1, 1),
    "inception_v1": (1, 1000),
    "inception_v2": (1, 1000),
    "resnet50": (1, 1000),
    "shufflenet": (1, 1000),
    "squeezenet": (1, 1000, 1, 1),
    "vgg19": (1, 1000),
    "zfnet512": (1, 1000),
}


def with_random_weights(path: Path) -> onnx.ModelProto:
    """He-initialised weights and positive scales, in the order of the nodes, so reproducible."""
    model = onnx.load(path)
    shapes = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
    rng = np.random.default_rng(7)
    kept = []
    for node in model.graph.node:
        if node.op_type != "ConstantOfShape":
            kept.append(node)
            continue
        array = random_weights(tuple(shapes[node.input[0]]), rng)
        model.graph.initializer.append(numpy_helper.from_array(array, node.output[0]))
    del model.graph.node[:]
    model.graph.node.extend(kept)
    model.ir_version = 8
    return model


def random_weights(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    if len(shape) == 1:
        return rng.uniform(0.5, 1.0, shape).astype(np.float32)
    fan_in = np.prod(shape[1:])
    values = rng.standard_normal(shape, np.float32)
    values *= np.float32(np.sqrt(2 / fan_in))
    return values


def without_softmax(model: onnx.ModelProto) -> onnx.ModelProto:
    """The last tensor before the probabilities, which would hide small errors."""
    last = model.graph.node[-1]
    if last.op_type == "Softmax":
        model.graph.output[0].name = last.input[0]
        model.graph.node.pop()
    return model


def by_onnxruntime(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, feeds)[0]


LARGE = ("bvlc_alexnet", "vgg19", "zfnet512")
"""Networks with hundreds of megabytes of weights, and operators that the others have, too."""

each_network = pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow if n in LARGE else ()) for n in NETWORKS],
)


@pytest.mark.slow_variants
@each_network
def test_network_agrees_with_onnxruntime(name: str) -> None:
    model = without_softmax(with_random_weights(FOLDER / f"light_{name}.onnx"))
    graph = import_model(model)
    x = np.random.default_rng(0).standard_normal(graph.inputs[0].type.shape).astype(np.float32)
    feeds = {graph.inputs[0].name: x}
    (ours,), expected = interpret(graph, feeds), by_onnxruntime(model, feeds)
    assert np.abs(ours - expected).max() <= 1e-4 * np.abs(expected).max()


@each_network
def test_stored_file_imports_with_its_softmax(name: str) -> None:
    graph = import_model(FOLDER / f"light_{name}.onnx")
    assert [node.type.shape for _, node in graph.outputs] == [NETWORKS[name]]

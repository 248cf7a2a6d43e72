"""A case with outputs that quantglow does not compile: strings, maps, and results of late shape.

Behind some of them is a product.  Float results must be onnxruntime's, int8 results those of the
values beside them, and the same after saving and loading; half of the cases hold late results as
opaque values.  A model of which something can be compiled never runs whole in onnxruntime.
"""

from __future__ import annotations

import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import quantglow as qg
from quantglow.ir.ops.external import External
from quantglow.support.arrays import Array
from tests.generators.onnx_models.drawing import ML
from tests.generators.onnx_models.models import Case
from tests.support.opaque_results import opaque_results

SHARE = 0.15
"""Share of cases with such an output."""
PRODUCT_SHARE = 0.5
"""Share of matrices with a product behind their elements other than 0."""
WIDTH = 8
"""Columns of that product."""
WORDS = ["no", "perhaps", "yes"]
WHOLE = np.arange(6, dtype=np.float32).reshape(2, 3)
"""A known output beside an empty one, which only onnxruntime can hold: both of one node."""


def with_foreign_ends(model: onnx.ModelProto, rng: np.random.Generator) -> onnx.ModelProto | None:
    """The model with one more output for some of its outputs; None if none is drawn."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model)
    outputs = {end.name: end for end in model.graph.output}
    for name, end in outputs.items():
        if rng.random() < PRODUCT_SHARE and is_matrix(end):
            add_product(proto.graph, end, rng)
        elif rng.random() < 0.6 and (actual := foreign_end(f"{name}_end", end, rng)) is not None:
            proto.graph.node.append(actual[0])
            proto.graph.output.append(actual[1])
    if len(proto.graph.output) == len(model.graph.output):
        return None
    if rng.random() < 0.3:
        add_known_ends(proto)
    return proto


def add_known_ends(model: onnx.ModelProto) -> None:
    """Add the outputs ``whole`` and ``empty`` of one node."""
    arrays: dict[str, Array] = {"known_whole": WHOLE}
    sizes: dict[str, Any] = {}
    if next(i.version for i in model.opset_import if not i.domain) < 13:
        sizes["split"] = [len(WHOLE), 0]
    else:
        arrays["known_sizes"] = np.array([len(WHOLE), 0], np.int64)
    model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in arrays.items())
    model.graph.node.append(helper.make_node("Split", [*arrays], ["whole", "empty"], **sizes))
    for name, shape in (("whole", WHOLE.shape), ("empty", (0, *WHOLE.shape[1:]))):
        model.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))


def is_matrix(end: onnx.ValueInfoProto) -> bool:
    """Whether an output is a float matrix."""
    kind = end.type.tensor_type
    return kind.elem_type == TensorProto.FLOAT and len(kind.shape.dim) == 2


def add_product(graph: onnx.GraphProto, end: onnx.ValueInfoProto, rng: np.random.Generator) -> None:
    """A row of an output for each element of it other than 0, times a matrix, as another output."""
    name, (_, columns) = end.name, end.type.tensor_type.shape.dim
    known = {
        "first": np.int64(0),
        "weights": rng.normal(size=(columns.dim_value, WIDTH)).astype(np.float32),
    }
    graph.initializer.extend(
        onnx.numpy_helper.from_array(np.asarray(array), f"{name}_{key}")
        for key, array in known.items()
    )
    nodes = [
        helper.make_node("NonZero", [name], [f"{name}_places"]),
        helper.make_node("Gather", [f"{name}_places", f"{name}_first"], [f"{name}_numbers"]),
        helper.make_node("Gather", [name, f"{name}_numbers"], [f"{name}_rows"]),
        helper.make_node("MatMul", [f"{name}_rows", f"{name}_weights"], [f"{name}_end"]),
    ]
    graph.node.extend(nodes)
    kind = helper.make_tensor_value_info(f"{name}_end", TensorProto.FLOAT, [None, WIDTH])
    graph.output.append(kind)


def foreign_end(
    name: str, end: onnx.ValueInfoProto, rng: np.random.Generator
) -> tuple[onnx.NodeProto, onnx.ValueInfoProto] | None:
    """A node that reads an output, and its result: strings, maps, or positions."""
    kind = end.type.tensor_type
    dims = [dim.dim_value for dim in kind.shape.dim]
    if kind.elem_type == TensorProto.INT64:
        table: dict[str, Any] = {"keys_int64s": [0, 1, 2], "values_strings": WORDS}
        node = helper.make_node("LabelEncoder", [end.name], [name], domain=ML, **table)
        return node, helper.make_tensor_value_info(name, TensorProto.STRING, dims)
    if kind.elem_type != TensorProto.FLOAT or not dims:
        return None
    if len(dims) == 2 and rng.random() < 0.5:
        labels = [f"label {i}" for i in range(dims[1])]
        node = helper.make_node("ZipMap", [end.name], [name], domain=ML, classlabels_strings=labels)
        return node, maps(name)
    node = helper.make_node("NonZero", [end.name], [name])
    return node, helper.make_tensor_value_info(name, TensorProto.INT64, [len(dims), None])


def maps(name: str) -> onnx.ValueInfoProto:
    """A sequence of maps from strings to floats."""
    value = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    entry = helper.make_map_type_proto(TensorProto.STRING, value)
    return helper.make_value_info(name, helper.make_sequence_type_proto(entry))


def foreign_difference(case: Case, level: str, threads: int) -> str:
    """The difference between such a model and its own outputs in words, or an empty text."""
    rng = np.random.default_rng(len(case.model.SerializeToString()) + 1)
    model = with_foreign_ends(case.model, rng) if rng.random() < SHARE else None
    names = [end.name for end in case.model.graph.output]
    if model is None or not all_finite(case) or len(set(names)) < len(names):
        return ""
    with opaque_results() if rng.random() < 0.5 else nullcontext():
        return model_difference(model, case, level, threads)


def model_difference(model: onnx.ModelProto, case: Case, level: str, threads: int) -> str:
    """The first fault of the compiled model or the int8 one."""
    compiled = [qg.compile(model, level, threads)]
    try:
        compiled.append(
            qg.quantize_and_compile(
                model,
                list(case.samples),
                target=level,
                num_threads=threads,
                verify=False,
                progress=False,
            )
        )
    except qg.CalibrationError:
        pass  # infinite values, which calibration refuses
    except qg.OptionError as error:
        if "quantized already" not in str(error):
            raise
    return next(filter(None, (described(each, model, case) for each in compiled)), "")


def all_finite(case: Case) -> bool:
    return all(np.isfinite(a).all() for feeds in case.samples for a in feeds.values())


def described(compiled: Any, model: onnx.ModelProto, case: Case) -> str:
    """The fault of a compiled model: that it is none, or in its declared outputs, values that are
    not compiled, or its file.
    """
    if isinstance(compiled, qg.FallbackModel) and may_be_compiled(model):
        return "a model of which something can be compiled runs whole in onnxruntime"
    names = [info.name for info in compiled.get_outputs()]
    if names != [end.name for end in model.graph.output]:
        return f"outputs {names}"
    feeds = case.samples[0]
    actual = dict(zip(names, compiled.run(None, feeds), strict=True))
    if not np.array_equal(actual.get("whole", WHOLE), WHOLE):
        return f"the known output whole is {actual['whole']!r:.200}"
    ends = [node for node in model.graph.node if node.output[0].endswith("_end")]
    products = [node for node in ends if node.op_type == "MatMul"]
    others = [node for node in ends if node.op_type != "MatMul"]
    details = [end_difference(n, actual[n.input[0]], actual[n.output[0]]) for n in others]
    details += [product_difference(n, compiled, model, actual) for n in products]
    return next(filter(None, details), "") or reloaded_difference(compiled, actual, feeds)


def may_be_compiled(model: onnx.ModelProto) -> bool:
    """Whether the importer knows any of its operators."""
    try:
        nodes = qg.import_model(model, fallback=True).compute_nodes()
    except qg.QuantglowError:
        return False
    return not all(isinstance(node, External) for node in nodes)


def product_difference(
    node: onnx.NodeProto, compiled: Any, model: onnx.ModelProto, actual: dict[str, Any]
) -> str:
    """Difference of a product from that of the values beside it, or an empty text; of an int8 one
    only the shape is compared."""
    end = node.output[0]
    read, inputs = actual[end.removesuffix("_end")], actual[end]
    (weights,) = (t for t in model.graph.initializer if t.name == node.input[1])
    with np.errstate(all="ignore"):
        expected = read[np.nonzero(read)[0]] @ onnx.numpy_helper.to_array(weights)
    if inputs.shape != expected.shape:
        return f"{end} has shape {inputs.shape}, not {expected.shape}"
    if is_int8(compiled, end):
        return ""
    # Sums that overflow depend on the order of their terms.
    inputs, expected = (product[np.isfinite(expected)] for product in (inputs, expected))
    near = 1e-4 * float(np.abs(expected).max(initial=0.0)) + 1e-6
    is_same = np.allclose(inputs, expected, rtol=0, atol=near)
    return "" if is_same else f"{end} differs by {np.abs(inputs - expected).max()}"


def is_int8(compiled: Any, product: str) -> bool:
    """Whether a product behind the nodes that decide its sizes is one of integers."""
    layers = {layer.name: layer.precision for layer in compiled.report.layers}
    return layers.get(product, "float") != "float"


def end_difference(node: onnx.NodeProto, read: Array, inputs: Any) -> str:
    """Difference of an output from the one computed of the values beside it, or an empty text."""
    if node.op_type == "LabelEncoder":
        expected: Any = [WORDS[i] if 0 <= i < 3 else "_Unused" for i in read.reshape(-1)]
        is_same = list(inputs.reshape(-1)) == expected and inputs.shape == read.shape
    elif node.op_type == "NonZero":
        is_same = np.array_equal(inputs, np.stack(np.nonzero(read)))
    else:
        values = [list(entry.values()) for entry in inputs]
        is_same = np.array_equal(np.float32(values), sorted_columns(inputs, read), equal_nan=True)
    return "" if is_same else f"{node.op_type} of {node.input[0]} gives {inputs!r:.200}"


def sorted_columns(inputs: list[dict[str, float]], read: Array) -> Array:
    """The columns in the order of the labels in the maps."""
    return read[:, [int(label.split()[1]) for label in inputs[0]]]


def reloaded_difference(compiled: Any, actual: dict[str, Any], feeds: Any) -> str:
    """Whether a saved and loaded model gives another result."""
    if isinstance(compiled, qg.FallbackModel):
        return ""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.qgm"
        compiled.save(path)
        target = compiled.specialisations.target
        again = qg.load(path, target, compiled.num_threads).run(None, feeds)
    for (name, one), other in zip(actual.items(), again, strict=True):
        same = one == other if isinstance(one, list) else same_arrays(one, other)
        if not same and repr(one) != repr(other):
            return f"{name} differs when saved and loaded"
    return ""


def same_arrays(one: Array, other: Array) -> bool:
    return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")

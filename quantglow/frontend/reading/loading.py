"""The border: bytes become a checked ``ModelProto``, or a ``ModelError``.  Files are untrusted."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import onnx
from google.protobuf.message import EncodeError

from quantglow.errors import ModelError, UnsupportedOpError
from quantglow.files import cause
from quantglow.frontend.reading.calls import with_functions_inlined
from quantglow.frontend.reading.external_data import load_external_data
from quantglow.frontend.reading.inlining import check_growth, with_defaults
from quantglow.frontend.reading.light_models import Weights, hollow, light
from quantglow.frontend.reading.loop_results import check_loops
from quantglow.frontend.reading.ordering import sorted_nodes
from quantglow.frontend.reading.proto import (
    MAX_NBYTES,
    OLDEST_OPSET,
    TOO_LARGE,
    all_names,
    every_node,
    opset_of,
)
from quantglow.frontend.reading.sparse_tensors import with_dense_tensors
from quantglow.frontend.reading.wire import light_decoded

LISTLESS_IR = 4
"""IR version since which initializers need not be inputs."""


@dataclass(frozen=True)
class Count:
    """The values of an attribute with which foreign code is safe."""

    range: range
    remedy: str


HEADS = Count(range(1, 2**31), "give 1 or more heads; leave it out for operands of rank 4")
"""onnxruntime has int32 for them and divides by them, which ends the process if they are 0."""

COUNTS = {
    "inputdimensions": Count(range(2**20), "give the number of columns of each input"),
    "batch_dims": Count(range(2**31), "give the number of leading dimensions, 0 or more"),
    "kv_num_heads": HEADS,
    "num_outputs": Count(range(2**16), "give the number of the node's outputs"),
    "q_num_heads": HEADS,
}
"""Attributes of Attention, GatherND, Split and FeatureVectorizer by name.  The shape inference of
onnx and of onnxruntime reads beyond a shape for negative ``batch_dims``, and makes a list of
``num_outputs`` sizes, of which it reads one for each output.  onnxruntime allocates the sum of
``inputdimensions``."""

RUNTIMES_OWN = frozenset({"SimplifiedLayerNormalization"})
"""Operators that onnxruntime puts in the standard domain, which the checker does not find there."""
RUNTIMES_DOMAIN = "quantglow.runtimes"
"""Domain that they have for the checker."""

COUNTING = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")
"""Domains of the operators with such attributes."""


def load_model(
    model: str | os.PathLike[str] | bytes | onnx.ModelProto,
) -> tuple[onnx.ModelProto, Weights]:
    """A checked light model and its weights.  Raises ``ModelError``."""
    if isinstance(model, onnx.ModelProto):
        return checked(model, "the model", folder=None)
    if isinstance(model, bytes | bytearray | memoryview):
        return read_light(bytes(model), "the model", None)
    if not isinstance(model, str | os.PathLike):
        raise ModelError(f"a model is a path, bytes or a ModelProto, not {type(model).__name__}")
    path = Path(model)
    return read_light(read_file(path), str(path), path.parent)


def read_light(data: bytes, origin: str, folder: Path | None) -> tuple[onnx.ModelProto, Weights]:
    """The checked light model in these bytes, and its weights, of which no other copy is made."""
    proto, weights = light_decoded(data, origin)
    made, rest = checked(proto, origin, folder, weights)
    return made, {**weights, **rest}


def read_file(path: Path) -> bytes:
    try:
        if path.stat().st_size > MAX_NBYTES:
            raise ModelError(f"{path}: {TOO_LARGE}")
        return path.read_bytes()
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{path}: cannot be read: {cause(error)}. Remedy: give the path of an ONNX file."
        ) from None


def checked(
    proto: onnx.ModelProto, origin: str, folder: Path | None, apart: Weights | None = None
) -> tuple[onnx.ModelProto, Weights]:
    """External data loaded, versions accepted, structure valid, local functions inlined.

    ``apart``: weights that the model has no data of; the result has the others.
    """
    if not proto.HasField("graph"):
        raise ModelError(f"{origin}: holds no graph, so it is no ONNX model; export it again")
    check_versions(proto, origin)
    check_names(proto, origin)
    check_growth(proto, origin)
    check_counts(proto, origin)
    load_external_data(proto, origin, folder)
    proto, weights = light(with_dense_tensors(proto, origin))
    proto = with_defaults(sorted_nodes(proto))
    try:
        onnx.checker.check_model(for_the_checker(hollow(proto, {**(apart or {}), **weights})))
        if proto.functions:
            proto = with_functions_inlined(proto)
            proto = with_dense_tensors(proto, origin)
    except (onnx.checker.ValidationError, EncodeError, RuntimeError, ValueError) as error:
        raise ModelError(f"{origin}: is not valid ONNX: {error}") from None
    check_loops(proto)
    return proto, weights


def for_the_checker(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model as the checker wants it, which is stricter than every runtime.

    It insists on a shape, even an empty one, before IR version 4 on listing all initializers as
    inputs, and on operators of the standard.
    """
    ends = [*proto.graph.input, *proto.graph.output]
    shaped = all(e.type.tensor_type.HasField("shape") for e in ends if is_tensor(e))
    is_standard = not any(node.op_type in RUNTIMES_OWN for node in every_node(proto))
    if shaped and is_standard and proto.ir_version >= LISTLESS_IR:
        return proto
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    copy.ir_version = max(copy.ir_version, LISTLESS_IR)
    for end in filter(is_tensor, [*copy.graph.input, *copy.graph.output]):
        end.type.tensor_type.shape.SetInParent()
    for node in every_node(copy):
        if node.op_type in RUNTIMES_OWN and not node.domain:
            node.domain = RUNTIMES_DOMAIN
    copy.opset_import.add(domain=RUNTIMES_DOMAIN, version=1)
    return copy


def is_tensor(value: onnx.ValueInfoProto) -> bool:
    return bool(value.type.HasField("tensor_type"))


def check_versions(proto: onnx.ModelProto, origin: str) -> None:
    newest, version = onnx.defs.onnx_opset_version(), opset_of(proto)
    if version > newest:
        raise ModelError(
            f"{origin}: uses opset {version}, but the installed onnx knows {newest}; upgrade onnx"
        )


def check_age(proto: onnx.ModelProto) -> None:
    """Raise ``UnsupportedOpError`` for operators older than those that the importers know."""
    is_standard = any(node.domain in ("", "ai.onnx") for node in every_node(proto))
    if is_standard and (version := opset_of(proto)) < OLDEST_OPSET:
        raise UnsupportedOpError(
            [
                f"the model uses opset {version}, older than {OLDEST_OPSET}; "
                "convert it with onnx.version_converter.convert_version(model, 13)"
            ]
        )


def check_names(proto: onnx.ModelProto, origin: str) -> None:
    """Raise ``ModelError`` for names that are no text: protobuf gives damaged ones as bytes."""
    for name in all_names(proto):
        if not isinstance(name, str):
            raise ModelError(f"{origin}: the name {name!r} is not UTF-8; export the model again")


def integers_of(attribute: onnx.AttributeProto) -> list[int]:
    """The integers of an attribute of one or several."""
    if attribute.type == onnx.AttributeProto.INT:
        return [attribute.i]
    return list(attribute.ints)


def check_counts(proto: onnx.ModelProto, origin: str) -> None:
    """Raise ``ModelError`` for attributes outside of ``COUNTS``."""
    known = (n for n in every_node(proto) if n.domain in COUNTING)
    for node, attribute in ((n, a) for n in known for a in n.attribute):
        count = COUNTS.get(attribute.name)
        if count is None:
            continue
        numbers = integers_of(attribute)
        least = len(node.output) if attribute.name == "num_outputs" else 0
        if any(number < least or number not in count.range for number in numbers):
            name = node.name or next(filter(None, node.output), "")
            shown = numbers[0] if len(numbers) == 1 else numbers
            raise ModelError(
                f"{origin}: node {name!r} ({node.op_type}): {attribute.name} is {shown}. "
                f"Remedy: {count.remedy}."
            )

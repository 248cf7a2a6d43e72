"""The border: bytes of untrusted files become a checked ``ModelProto``, or a ``ModelError``.

Weights that a model stores in files beside it are read from its folder only.  A Loop stacks a value
of each trip: onnxruntime keeps those values apart until the last trip, and ends the process where
there is no room for them, so loops whose results fill the memory for certain are refused.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath

import onnx
from google.protobuf.message import EncodeError
from onnx import numpy_helper

from quantglow.importer.onnx.budget import Meter
from quantglow.importer.onnx.domains import RUNTIME_DOMAINS
from quantglow.importer.onnx.reading.canonicalization import (
    check_growth,
    sort_nodes,
    with_defaults,
    with_dense_tensors,
    with_functions_inlined,
)
from quantglow.importer.onnx.reading.light_models import Weights, hollow, light, light_decoded
from quantglow.importer.onnx.reading.proto import (
    MAX_NBYTES,
    OLDEST_OPSET,
    TOO_LARGE,
    all_names,
    all_nodes,
    all_tensors,
    every_node,
    iterate_graphs,
    main_opset,
)
from quantglow.support.errors import ModelError, UnsupportedOpError
from quantglow.support.files import cause

RESULT_NBYTES = 256
"""Bytes that onnxruntime allocates for the smallest tensor."""

STANDARD = ("", "ai.onnx")
"""The names of the domain of ONNX's operators."""

Constants = Mapping[str, onnx.TensorProto]

LISTLESS_IR = 4
"""IR version since which initializers need not be inputs."""

RUNTIMES_OWN = frozenset({"SimplifiedLayerNormalization"})
"""Operators that onnxruntime puts in the standard domain, which the checker does not find there."""

RUNTIMES_DOMAIN = "quantglow.runtimes"
"""Domain of ``RUNTIMES_OWN`` for the checker."""


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


def load_model(
    model: str | os.PathLike[str] | bytes | onnx.ModelProto,
) -> tuple[onnx.ModelProto, Weights]:
    """A checked light model and its weights.  Raises ``ModelError``."""
    if isinstance(model, onnx.ModelProto):
        return check(model, "the model", folder=None)
    if isinstance(model, bytes | bytearray | memoryview):
        return _read_light(bytes(model), "the model", None)
    if not isinstance(model, str | os.PathLike):
        raise ModelError(f"a model is a path, bytes or a ModelProto, not {type(model).__name__}")
    path = Path(model)
    return _read_light(read_file(path), str(path), path.parent)


def _read_light(data: bytes, origin: str, folder: Path | None) -> tuple[onnx.ModelProto, Weights]:
    """The checked light model in these bytes, and its weights, of which no other copy is made."""
    proto, weights = light_decoded(data, origin)
    model, paged = check(proto, origin, folder, weights)
    return model, {**weights, **paged}


def read_file(path: Path) -> bytes:
    try:
        if path.stat().st_size > MAX_NBYTES:
            raise ModelError(f"{path}: {TOO_LARGE}")
        return path.read_bytes()
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{path}: cannot be read: {cause(error)}. Remedy: give the path of an ONNX file."
        ) from None


def check(
    proto: onnx.ModelProto, origin: str, folder: Path | None, apart: Weights | None = None
) -> tuple[onnx.ModelProto, Weights]:
    """External data loaded, versions accepted, structure valid, local functions inlined.

    ``apart``: weights that the model has no data of; the result has the others.
    """
    if not proto.HasField("graph"):
        raise ModelError(f"{origin}: holds no graph, so it is no ONNX model; export it again")
    _check_versions(proto, origin)
    _check_names(proto, origin)
    check_growth(proto, origin)
    _check_counts(proto, origin)
    _load_external_data(proto, origin, folder)
    proto, weights = light(with_dense_tensors(proto, origin))
    proto = with_defaults(sort_nodes(proto))
    try:
        onnx.checker.check_model(_for_the_checker(hollow(proto, {**(apart or {}), **weights})))
        if proto.functions:
            proto = with_functions_inlined(proto)
            proto = with_dense_tensors(proto, origin)
    except (onnx.checker.ValidationError, EncodeError, RuntimeError, ValueError) as error:
        raise ModelError(f"{origin}: is not valid ONNX: {error}") from None
    _check_loops(proto)
    return proto, weights


def _for_the_checker(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model as the checker wants it, which is stricter than every runtime.

    It insists on a shape, even an empty one, before IR version 4 on listing all initializers as
    inputs, and on operators of the standard.
    """
    ends = [*proto.graph.input, *proto.graph.output]
    shaped = all(e.type.tensor_type.HasField("shape") for e in ends if _is_tensor(e))
    is_standard = not any(node.op_type in RUNTIMES_OWN for node in every_node(proto))
    if shaped and is_standard and proto.ir_version >= LISTLESS_IR:
        return proto
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    copy.ir_version = max(copy.ir_version, LISTLESS_IR)
    for end in filter(_is_tensor, [*copy.graph.input, *copy.graph.output]):
        end.type.tensor_type.shape.SetInParent()
    for node in every_node(copy):
        if node.op_type in RUNTIMES_OWN and not node.domain:
            node.domain = RUNTIMES_DOMAIN
    copy.opset_import.add(domain=RUNTIMES_DOMAIN, version=1)
    return copy


def _is_tensor(value: onnx.ValueInfoProto) -> bool:
    return bool(value.type.HasField("tensor_type"))


def _check_versions(proto: onnx.ModelProto, origin: str) -> None:
    newest, version = onnx.defs.onnx_opset_version(), main_opset(proto)
    if version > newest:
        raise ModelError(
            f"{origin}: uses opset {version}, but the installed onnx knows {newest}; upgrade onnx"
        )


def check_age(proto: onnx.ModelProto) -> None:
    """Raise ``UnsupportedOpError`` for operators older than those that the importers know."""
    is_standard = any(node.domain in ("", "ai.onnx") for node in every_node(proto))
    if is_standard and (version := main_opset(proto)) < OLDEST_OPSET:
        raise UnsupportedOpError(
            [
                f"the model uses opset {version}, older than {OLDEST_OPSET}; "
                "convert it with onnx.version_converter.convert_version(model, 13)"
            ]
        )


def _check_names(proto: onnx.ModelProto, origin: str) -> None:
    """Raise ``ModelError`` for names that are not text: protobuf gives damaged ones as bytes."""
    for name in all_names(proto):
        if not isinstance(name, str):
            raise ModelError(f"{origin}: the name {name!r} is not UTF-8; export the model again")


def _attribute_integers(attribute: onnx.AttributeProto) -> list[int]:
    """The integers of an attribute of one or several."""
    if attribute.type == onnx.AttributeProto.INT:
        return [attribute.i]
    return list(attribute.ints)


def _check_counts(proto: onnx.ModelProto, origin: str) -> None:
    """Raise ``ModelError`` for attributes outside of ``COUNTS``."""
    nodes = (n for n in every_node(proto) if n.domain in RUNTIME_DOMAINS)
    for node, attribute in ((n, a) for n in nodes for a in n.attribute):
        count = COUNTS.get(attribute.name)
        if count is None:
            continue
        numbers = _attribute_integers(attribute)
        least = len(node.output) if attribute.name == "num_outputs" else 0
        if any(number < least or number not in count.range for number in numbers):
            name = node.name or next(filter(None, node.output), "")
            shown = numbers[0] if len(numbers) == 1 else numbers
            raise ModelError(
                f"{origin}: node {name!r} ({node.op_type}): {attribute.name} is {shown}. "
                f"Remedy: {count.remedy}."
            )


def _load_external_data(proto: onnx.ModelProto, origin: str, folder: Path | None) -> None:
    """Read weights stored beside the model, inside its folder only."""
    room = MAX_NBYTES
    for tensor in all_tensors(proto):
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        what = f"{origin}: external data of tensor {tensor.name!r}"
        if folder is None:
            raise ModelError(f"{what} needs the model's folder; pass the model as a path")
        tensor.raw_data = _read_external(tensor, folder, what, room)
        room -= len(tensor.raw_data)
        tensor.data_location = onnx.TensorProto.DEFAULT
        del tensor.external_data[:]


def _read_external(tensor: onnx.TensorProto, folder: Path, what: str, room: int) -> bytes:
    """The bytes of a tensor, ``room`` at most: many tensors may name one file, or a sparse one."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    path = _safe_path(entries.get("location", ""), folder, what)
    try:
        with path.open("rb") as file:
            _check_links(path, os.fstat(file.fileno()), what)
            size, offset = os.fstat(file.fileno()).st_size, int(entries.get("offset", 0))
            nbytes = int(entries.get("length", size - offset))
            if not 0 <= offset <= size or not 0 <= nbytes <= size - offset:
                raise ModelError(f"{what} lies outside the file {path.name!r}; it may be truncated")
            if nbytes > room:
                raise ModelError(f"{what}: {TOO_LARGE}")
            file.seek(offset)
            return file.read(nbytes)
    except (OSError, ValueError) as error:
        raise ModelError(f"{what} cannot be read: {error}") from None


def _safe_path(location: str, folder: Path, what: str) -> Path:
    """The file ``location`` names in ``folder``.  Raises ``ModelError`` if it leaves the folder."""
    forms = (PurePosixPath(location), PureWindowsPath(location))
    leaves = any(form.is_absolute() or form.anchor or ".." in form.parts for form in forms)
    if not location or "\0" in location or leaves:
        raise ModelError(f"{what} has the path {location!r}, which leaves the model's folder")
    path = folder / location
    if not path.resolve().is_relative_to(folder.resolve()):
        raise ModelError(f"{what}: {location!r} links to a place outside the model's folder")
    if not path.is_file():
        raise ModelError(f"{what}: the file {location!r} is missing beside the model")
    return path


def _check_links(path: Path, status: os.stat_result, what: str) -> None:
    """Raise ``ModelError`` for a file that has names (hard links) outside of its folder.

    Whoever may write into the folder could link files there that only the reader may read.
    """
    if status.st_nlink == 1:
        return
    inside = [e for e in os.scandir(path.parent) if e.inode() == status.st_ino]
    if len(inside) < status.st_nlink:
        raise ModelError(
            f"{what}: the file {path.name!r} has a hard link outside the model's folder, so it may "
            f"be another file of yours. Remedy: if it is the model's, replace it by a copy of "
            f"itself: cp {path.name} copy && mv copy {path.name}"
        )


def _check_loops(proto: onnx.ModelProto) -> None:
    """Raise ``ImportBudgetError`` for a Loop that stacks more than the import's budget.

    Only known numbers of trips count, and conditions that never end the loop.
    """
    loops = [n for n in all_nodes(proto.graph.node) if n.op_type == "Loop" and n.domain in STANDARD]
    if not loops:
        return
    meter, constants = Meter(), dict(_constant_tensors(proto))
    for node in loops:
        stacked = len(node.output) - max(len(node.input) - 2, 0)
        trips = _sure_trips(node, constants) if stacked > 0 else 0
        if trips * stacked * RESULT_NBYTES > meter.budget.nbytes:
            meter.node = node
            count = "without end" if math.isinf(trips) else f"{trips:.0f} times"
            raise meter.exceeded("nbytes", f"the loop runs {count} and keeps a result of each trip")


def _constant_tensors(proto: onnx.ModelProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    """Names and values of initializers and Constant nodes, of subgraphs, too."""
    for graph in iterate_graphs(proto):
        for tensor in graph.initializer:
            yield tensor.name, tensor
        for node in graph.node:
            if node.op_type == "Constant" and node.domain in STANDARD:
                values = [a.t for a in node.attribute if a.name == "value"]
                yield from zip(node.output, values, strict=False)


def _sure_trips(node: onnx.NodeProto, constants: Constants) -> float:
    """The number of trips; 0 where it is computed, or where a condition may end the loop."""
    trips, holds = (*node.input, "", "")[:2]
    bodies = [a.g for a in node.attribute if a.name == "body"]
    if not bodies or (holds and not _scalar(holds, constants)) or _may_end(bodies[0], constants):
        return 0
    return max(_scalar(trips, constants), 0) if trips else math.inf


def _may_end(body: onnx.GraphProto, constants: Constants) -> bool:
    """Whether the condition after a trip is anything but true or the condition before it."""
    if not body.output or len(body.input) < 2:
        return True
    makers = {name: node for node in body.node for name in node.output}
    name = body.output[0].name
    while (node := makers.pop(name, None)) and node.op_type == "Identity":
        name = next(iter(node.input), "")
    return name != body.input[1].name and not _scalar(name, constants)


def _scalar(name: str, constants: Constants) -> int:
    """The first element of a constant; 0 where the value is not known."""
    tensor = constants.get(name)
    if tensor is None or tensor.data_location == onnx.TensorProto.EXTERNAL:
        return 0
    if tensor.data_type not in (onnx.TensorProto.INT64, onnx.TensorProto.BOOL):
        return 0
    try:
        values = numpy_helper.to_array(tensor).reshape(-1)
    except (TypeError, ValueError):
        return 0
    return int(values[0]) if values.size else 0

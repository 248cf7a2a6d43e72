"""The border: bytes become a checked ``ModelProto``, or a ``ModelError``.  Files are untrusted."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath

import onnx
import onnx.inliner
from google.protobuf.message import DecodeError, EncodeError

from quantglow.errors import ModelError, UnsupportedOpError
from quantglow.files import cause

OLDEST_OPSET = 7
LISTLESS_IR = 4
"""IR version since which initializers need not be inputs."""

HEADS = frozenset({"kv_num_heads", "q_num_heads"})
"""Attributes of Attention."""

MAX_NBYTES = 2**31 - 1
"""Protobuf's own limit for one message: of all weights, wherever they are stored."""

TOO_LARGE = "the model and its weights are larger than 2 GiB; split the model"


def load_model(model: str | os.PathLike[str] | bytes | onnx.ModelProto) -> onnx.ModelProto:
    """A checked model with all its weights in memory.  Raises ``ModelError``."""
    if isinstance(model, onnx.ModelProto):
        return checked(model, "the model", folder=None)
    if isinstance(model, bytes | bytearray | memoryview):
        data = bytes(model)
        return checked(decoded(data, "the model"), "the model", folder=None, data=data)
    if not isinstance(model, str | os.PathLike):
        raise ModelError(f"a model is a path, bytes or a ModelProto, not {type(model).__name__}")
    path = Path(model)
    data = read_file(path)
    return checked(decoded(data, str(path)), str(path), path.parent, data)


def read_file(path: Path) -> bytes:
    try:
        if path.stat().st_size > MAX_NBYTES:
            raise ModelError(f"{path}: {TOO_LARGE}")
        return path.read_bytes()
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{path}: cannot be read: {cause(error)}. Remedy: give the path of an ONNX file."
        ) from None


def decoded(data: bytes, origin: str) -> onnx.ModelProto:
    if not data:
        raise ModelError(f"{origin}: is empty. Remedy: export the model again.")
    try:
        proto: onnx.ModelProto = onnx.ModelProto.FromString(data)
    except DecodeError as error:
        raise ModelError(
            f"{origin}: is no ONNX file, or is truncated: {error}. "
            "Remedy: export or copy the model again; what a compiled model's save wrote is for "
            "quantglow.load."
        ) from None
    return proto


def checked(
    proto: onnx.ModelProto, origin: str, folder: Path | None, data: bytes | None = None
) -> onnx.ModelProto:
    """External data loaded, versions accepted, structure valid, local functions inlined.

    ``data``: the bytes it was decoded from, which the checker would otherwise make again.
    """
    if not proto.HasField("graph"):
        raise ModelError(f"{origin}: holds no graph, so it is no ONNX model; export it again")
    check_versions(proto, origin)
    check_names(proto, origin)
    refuse_recursion(proto, origin)
    check_heads(proto, origin)
    whole = not load_external_data(proto, origin, folder)
    try:
        accepted = for_the_checker(proto)
        as_read = data if whole and accepted is proto else None
        onnx.checker.check_model(as_read or accepted)
        if proto.functions:
            proto = onnx.inliner.inline_local_functions(proto)
    except (onnx.checker.ValidationError, EncodeError, RuntimeError, ValueError) as error:
        raise ModelError(f"{origin}: is not valid ONNX: {error}") from None
    return proto


def for_the_checker(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model as the checker wants it, which is stricter than every runtime.

    It insists on a shape, even an empty one, and before IR version 4 on listing all initializers
    as inputs.
    """
    ends = [*proto.graph.input, *proto.graph.output]
    shaped = all(e.type.tensor_type.HasField("shape") for e in ends if is_tensor(e))
    if shaped and proto.ir_version >= LISTLESS_IR:
        return proto
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    copy.ir_version = max(copy.ir_version, LISTLESS_IR)
    for end in filter(is_tensor, [*copy.graph.input, *copy.graph.output]):
        end.type.tensor_type.shape.SetInParent()
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
    if (version := opset_of(proto)) < OLDEST_OPSET:
        raise UnsupportedOpError(
            [
                f"the model uses opset {version}, older than {OLDEST_OPSET}; "
                "convert it with onnx.version_converter.convert_version(model, 13)"
            ]
        )


def opset_of(proto: onnx.ModelProto) -> int:
    """The version of the standard operators; 1 where the model does not say."""
    return opsets_of(proto).get("", 1)


def opsets_of(proto: onnx.ModelProto | onnx.FunctionProto) -> dict[str, int]:
    """Version by domain; the standard domain is called ``""``."""
    return {"" if o.domain == "ai.onnx" else o.domain: o.version for o in proto.opset_import}


def check_names(proto: onnx.ModelProto, origin: str) -> None:
    """Raise ``ModelError`` for names that are no text: protobuf gives damaged ones as bytes."""
    of_nodes = (
        name
        for node in every_node(proto)
        for name in (*node.input, *node.output, *(a.name for a in node.attribute))
    )
    values = (value.name for value in (*proto.graph.input, *proto.graph.output))
    for name in (*values, *(tensor.name for tensor in all_tensors(proto)), *of_nodes):
        if not isinstance(name, str):
            raise ModelError(f"{origin}: the name {name!r} is not UTF-8; export the model again")


def refuse_recursion(proto: onnx.ModelProto, origin: str) -> None:
    """Raise ``ModelError`` if a local function calls itself: inlining would not end."""
    calls = {
        (f.domain, f.name): {(n.domain, n.op_type) for n in all_nodes(f.node)}
        for f in proto.functions
    }
    while leaves := [name for name, called in calls.items() if not called & calls.keys()]:
        for name in leaves:
            del calls[name]
    if calls:
        names = sorted(f"{domain}.{name}" for domain, name in calls)
        raise ModelError(f"{origin}: the local functions {names} call themselves")


def check_heads(proto: onnx.ModelProto, origin: str) -> None:
    """Raise ``ModelError`` for numbers of heads that onnxruntime, which has int32 for them, would
    take for 0 and divide by: that ends the process.
    """
    for node in every_node(proto):
        for attribute in node.attribute:
            counts_heads = attribute.name in HEADS and attribute.type == onnx.AttributeProto.INT
            if counts_heads and not 0 < attribute.i < 2**31:
                name = node.name or next(filter(None, node.output), "")
                raise ModelError(
                    f"{origin}: node {name!r} ({node.op_type}): {attribute.name} is {attribute.i}. "
                    "Remedy: give 1 or more heads; leave it out for operands of rank 4."
                )


def load_external_data(proto: onnx.ModelProto, origin: str, folder: Path | None) -> bool:
    """Read weights stored beside the model, inside its folder only; whether there are any."""
    found, room = False, MAX_NBYTES
    for tensor in all_tensors(proto):
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        what = f"{origin}: external data of tensor {tensor.name!r}"
        if folder is None:
            raise ModelError(f"{what} needs the model's folder; pass the model as a path")
        tensor.raw_data = read_external(tensor, folder, what, room)
        room -= len(tensor.raw_data)
        tensor.data_location = onnx.TensorProto.DEFAULT
        del tensor.external_data[:]
        found = True
    return found


def read_external(tensor: onnx.TensorProto, folder: Path, what: str, room: int) -> bytes:
    """The bytes of a tensor, ``room`` at most: many tensors may name one file, or a sparse one."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    path = safe_path(entries.get("location", ""), folder, what)
    try:
        offset, length = int(entries.get("offset", 0)), int(entries.get("length", -1))
        available = path.stat().st_size - offset
        if offset < 0 or available < 0 or length > available:
            raise ModelError(f"{what} lies outside the file {path.name!r}; it may be truncated")
        nbytes = available if length < 0 else length
        if nbytes > room:
            raise ModelError(f"{what}: {TOO_LARGE}")
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(nbytes)
    except (OSError, ValueError) as error:
        raise ModelError(f"{what} cannot be read: {error}") from None


def safe_path(location: str, folder: Path, what: str) -> Path:
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


def all_tensors(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Initializers and attribute tensors of the graph, its subgraphs and the local functions."""
    yield from graph_tensors(proto.graph)
    for attribute in (a for node in every_node(proto) for a in node.attribute):
        yield from (attribute.t, *attribute.tensors)
        for graph in (attribute.g, *attribute.graphs):
            yield from graph_tensors(graph)
        for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
            yield from (sparse.values, sparse.indices)


def graph_tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)


def every_node(proto: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """The nodes of the graph and of the local functions, with those of their subgraphs."""
    yield from all_nodes(proto.graph.node)
    for function in proto.functions:
        yield from all_nodes(function.node)


def all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """The nodes and, depth first, those of their subgraphs."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from all_nodes(graph.node)

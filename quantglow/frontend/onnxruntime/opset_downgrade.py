"""Models under an older opset, as long as that changes no operator's meaning."""

from __future__ import annotations

from collections.abc import Iterator

import onnx
from google.protobuf.message import DecodeError

from quantglow.frontend.reading.proto import all_nodes, opsets_of

MOST_STEPS = 4
"""Runtimes lag behind the standard by a few opsets at most."""

DEFINED = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")
"""Domains of operators that onnxruntime has."""

MOST_NAMED = 5

OLDEST_IR = 10
"""Has all types that runtimes take."""


def downgraded(model: bytes) -> Iterator[bytes]:
    """The model in its opset, then in older ones, each in the oldest IR version that has it."""
    try:
        proto = onnx.ModelProto.FromString(model)
    except DecodeError:
        return
    used = {node.op_type for node in all_nodes(proto.graph.node) if not node.domain}
    newest = opsets_of(proto).get("", 1)
    for opset in range(newest, newest - MOST_STEPS, -1):
        if not all(means_the_same(op_type, newest, opset) for op_type in used):
            return
        for stamp in proto.opset_import:
            if not stamp.domain:
                stamp.version = opset
        version = onnx.helper.find_min_ir_version_for(proto.opset_import, ignore_unknown=True)
        proto.ir_version = max(version, OLDEST_IR)
        yield proto.SerializeToString()


def foreign_nodes(model: bytes) -> list[str]:
    """The first nodes of a model whose operators ONNX does not define, for a message."""
    try:
        proto = onnx.ModelProto.FromString(model)
    except DecodeError:
        return []
    found = [node for node in all_nodes(proto.graph.node) if node.domain not in DEFINED]
    return [f"{node.op_type} {node.output[0]!r} of {node.domain}" for node in found[:MOST_NAMED]]


def means_the_same(op_type: str, newer: int, older: int) -> bool:
    """Whether both versions are described in the same words: then they differ in types only."""
    try:
        new, old = (onnx.defs.get_schema(op_type, opset) for opset in (newer, older))
    except onnx.defs.SchemaError:
        return False
    return new.since_version == old.since_version or (
        new.doc == old.doc
        and new.attributes.keys() == old.attributes.keys()
        and [p.name for p in new.inputs] == [p.name for p in old.inputs]
        and [p.name for p in new.outputs] == [p.name for p in old.outputs]
    )

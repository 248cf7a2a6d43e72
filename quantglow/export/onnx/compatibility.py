"""Compatibility of models with runtimes: other opsets, and results without a name.

ONNX lets a result have no name.  onnxruntime 1.32 ends the process where that is a state of a Loop,
a part of a Split, or a statistic of a BatchNormalization that trains or has the five results of
older opsets, and refuses to load some others of operators with subgraphs.  The results of bodies
may be one value twice, or an input; then its values are wrong or missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import onnx
from google.protobuf.message import DecodeError
from onnx import version_converter

from quantglow.importer.onnx.domains import RUNTIME_DOMAINS
from quantglow.importer.onnx.nodes.folding import INFERENCE_FAILURES
from quantglow.importer.onnx.reading.proto import (
    all_names,
    all_nodes,
    every_node,
    main_opset,
    opset_versions,
)
from quantglow.support.errors import ModelError

NAMED_RESULTS = frozenset({"BatchNormalization", "Split"})
"""Operators without subgraphs whose results need names."""

MOST_STEPS = 4
"""Runtimes lag behind the standard by a few opsets at most."""

MOST_NAMED = 5

OLDEST_IR = 10
"""Has all types that runtimes take."""


def name_left_out_results(proto: onnx.ModelProto) -> bool:
    """Give new names to results without one where onnxruntime takes them for granted; whether there
    were any."""
    unnamed = [node for node in every_node(proto) if "" in node.output and _is_unsafe(node)]
    if unnamed:
        names = _new_names(proto)
        for node in unnamed:
            node.output[:] = [name or next(names) for name in _node_results(node)]
    return bool(unnamed)


def _is_unsafe(node: onnx.NodeProto) -> bool:
    """Whether onnxruntime takes for granted that results of a node have names."""
    if any(attribute.HasField("g") for attribute in node.attribute):
        return True
    return node.domain in ("", "ai.onnx") and node.op_type in NAMED_RESULTS


def _node_results(node: onnx.NodeProto) -> list[str]:
    """The results of a node; a BatchNormalization that does not train has but one."""
    names = list(node.output)
    trains = any(a.name == "training_mode" and a.i for a in node.attribute)
    if node.op_type == "BatchNormalization" and not trains and not any(names[1:]):
        return names[:1]
    return names


def _new_names(proto: onnx.ModelProto) -> Iterator[str]:
    """Names that the model does not have."""
    existing = set(all_names(proto))
    yield from (name for name in map("left out {}".format, count()) if name not in existing)


def copy_shared_results(proto: onnx.ModelProto) -> bool:
    """Give bodies results of their own where onnxruntime gives wrong or no values: for one that is
    given twice, and for numbers of trips and elements of a Scan; whether there were any."""
    names, is_changed = _new_names(proto), False
    for node in every_node(proto):
        for body in (attribute.g for attribute in node.attribute if attribute.HasField("g")):
            occupied = _reused_inputs(node, body)
            for result in body.output:
                if result.name in occupied:
                    body.node.add(op_type="Identity", input=[result.name], output=[next(names)])
                    result.name, is_changed = body.node[-1].output[0], True
                occupied.add(result.name)
    return is_changed


def _reused_inputs(node: onnx.NodeProto, body: onnx.GraphProto) -> set[str]:
    """Inputs of a body whose memory onnxruntime uses again while they are results."""
    count = {"Loop": 1, "Scan": len(body.input)}.get(node.op_type, 0)
    return {value.name for value in body.input[:count]}


def downgrade(model: bytes) -> Iterator[bytes]:
    """The model in its opset, then in older ones, each in the oldest IR version that has it."""
    try:
        proto = onnx.ModelProto.FromString(model)
    except DecodeError:
        return
    used = {node.op_type for node in all_nodes(proto.graph.node) if not node.domain}
    newest = opset_versions(proto).get("", 1)
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
    """The first nodes of a model whose operators onnxruntime does not have, for a message."""
    try:
        proto = onnx.ModelProto.FromString(model)
    except DecodeError:
        return []
    foreign = [node for node in all_nodes(proto.graph.node) if node.domain not in RUNTIME_DOMAINS]
    return [f"{node.op_type} {node.output[0]!r} of {node.domain}" for node in foreign[:MOST_NAMED]]


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


def at_opset(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """The model with all nodes as ``opset`` has them; the same object if it is of that.

    Raises ``ModelError`` for operators that the newer version has no form for.
    """
    declared = main_opset(model)
    if declared == opset:
        return model
    if _is_same_in(model, opset):
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        for stamp in copy.opset_import:
            if stamp.domain in ("", "ai.onnx"):
                stamp.version = opset
        return copy
    try:
        converted: onnx.ModelProto = version_converter.convert_version(model, opset)
    except (RuntimeError, *INFERENCE_FAILURES) as error:
        names = ", ".join(sorted(_changed_operators(model, opset)))
        raise ModelError(
            f"operators that stay as the model has them ({names}) changed between opset {declared} "
            f"and {opset}, in which the model is written, and onnx does not convert them: {error}. "
            f"Remedy: export the original with opset {opset}, and quantize that."
        ) from error
    return converted


def opset_for(model: onnx.ModelProto, least: int) -> int:
    """The oldest opset from ``least`` on that has the operators of the model, or that ONNX converts
    them to: runtimes may not read the newest one."""
    declared = main_opset(model)
    if declared <= least:
        return least
    return next(opset for opset in range(least, declared + 1) if _is_same_in(model, opset))


def _is_same_in(model: onnx.ModelProto, opset: int) -> bool:
    """Whether every operator of the model means the same in another version."""
    return not _changed_operators(model, opset)


def _changed_operators(model: onnx.ModelProto, opset: int) -> set[str]:
    """Operators of the model that mean something else in another version."""
    declared = main_opset(model)
    used = {node.op_type for node in all_nodes(model.graph.node) if node.domain in ("", "ai.onnx")}
    return {op for op in used if not means_the_same(op, max(declared, opset), min(declared, opset))}

"""Results that onnxruntime takes for granted: names of those that nobody reads, copies of others.

ONNX lets a result have no name.  onnxruntime 1.32 ends the process where that is a state of a Loop,
a part of a Split, or a statistic of a BatchNormalization that trains or has the five results of
older opsets, and refuses to load some others of operators with subgraphs.  The results of bodies
may be one value twice, or an input; then its values are wrong or missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import onnx

from quantglow.frontend.reading.proto import all_names, every_node


def name_left_out_results(proto: onnx.ModelProto) -> bool:
    """Give new names to results without one where onnxruntime takes them for granted; whether there
    were any."""
    found = [node for node in every_node(proto) if "" in node.output and is_unsafe(node)]
    if found:
        names = new_names(proto)
        for node in found:
            node.output[:] = [name or next(names) for name in wanted(node)]
    return bool(found)


def is_unsafe(node: onnx.NodeProto) -> bool:
    """Whether onnxruntime takes for granted that results of a node have names."""
    if any(attribute.HasField("g") for attribute in node.attribute):
        return True
    return node.domain in ("", "ai.onnx") and node.op_type in ("BatchNormalization", "Split")


def wanted(node: onnx.NodeProto) -> list[str]:
    """The results of a node; a BatchNormalization that does not train has but one."""
    names = list(node.output)
    trains = any(a.name == "training_mode" and a.i for a in node.attribute)
    if node.op_type == "BatchNormalization" and not trains and not any(names[1:]):
        return names[:1]
    return names


def new_names(proto: onnx.ModelProto) -> Iterator[str]:
    """Names that the model does not have."""
    taken = set(all_names(proto))
    yield from (name for name in map("left out {}".format, count()) if name not in taken)


def copy_shared_results(proto: onnx.ModelProto) -> bool:
    """Give bodies results of their own where onnxruntime gives wrong or no values: for one that is
    given twice, and for numbers of trips and elements of a Scan; whether there were any."""
    names, is_changed = new_names(proto), False
    for node in every_node(proto):
        for body in (attribute.g for attribute in node.attribute if attribute.HasField("g")):
            known = given_values(node, body)
            for result in body.output:
                if result.name in known:
                    body.node.add(op_type="Identity", input=[result.name], output=[next(names)])
                    result.name, is_changed = body.node[-1].output[0], True
                known.add(result.name)
    return is_changed


def given_values(node: onnx.NodeProto, body: onnx.GraphProto) -> set[str]:
    """Inputs of a body whose memory onnxruntime uses again while they are results."""
    count = {"Loop": 1, "Scan": len(body.input)}.get(node.op_type, 0)
    return {value.name for value in body.input[:count]}

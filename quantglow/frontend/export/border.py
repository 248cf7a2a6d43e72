"""Casts between the float types that a model declares and float32, in an exported model."""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from quantglow.frontend.export.writer import unused
from quantglow.frontend.nodes.values import OTHER_FLOATS
from quantglow.frontend.resolvers.external import renamed

CODES = {name: code for code, name in OTHER_FLOATS.items()}
FLOAT = onnx.TensorProto.FLOAT


def declare(graph: onnx.GraphProto, declared: Mapping[str, str]) -> None:
    """Give inputs and outputs of float32 their declared types, with a Cast at each."""
    used = {name for node in graph.node for name in (*node.input, *node.output)}
    used |= {tensor.name for tensor in graph.initializer}
    first, last, names = [], [], dict[str, str]()
    for position, ends in enumerate((graph.input, graph.output)):
        for end in ends:
            kind = end.type.tensor_type
            if end.name not in declared or kind.elem_type != FLOAT:
                continue
            names[end.name] = inner = unused(f"{end.name}:float32", used)
            used.add(inner)
            kind.elem_type = code = CODES[declared[end.name]]
            if position:
                last.append(cast(inner, end.name, code))
            else:
                first.append(cast(end.name, inner, FLOAT))
    inside = [renamed(node, names) for node in graph.node]
    for node in inside:
        node.name = next(filter(None, node.output))
    del graph.node[:]
    graph.node.extend([*first, *inside, *last])


def cast(source: str, target: str, code: int) -> onnx.NodeProto:
    made: onnx.NodeProto = onnx.helper.make_node("Cast", [source], [target], name=target, to=code)
    return made

"""Names in the body of a Loop: what its nodes read, and what its outputs are copies of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx


def originals(body: onnx.GraphProto) -> list[str]:
    """The outputs of a body by the names of what Identities copy."""
    copies = copied_names(body)
    return [original(str(output.name), copies) for output in body.output]


def copied_names(body: onnx.GraphProto) -> dict[str, str]:
    """Names of what Identities copy, by the names of the copies."""
    nodes = (node for node in body.node if node.op_type == "Identity")
    return {str(node.output[0]): str(node.input[0]) for node in nodes}


def original(name: str, copies: Mapping[str, str]) -> str:
    """The name of what a value is a copy of, else its own."""
    while name in copies:
        name = copies[name]
    return name


def names_read(graph: onnx.GraphProto) -> Iterator[str]:
    """The names that nodes of a graph read, those in subgraphs included."""
    for node in graph.node:
        yield from names_read_by(node)


def names_read_by(node: onnx.NodeProto) -> Iterator[str]:
    """The names that a node reads, those in its subgraphs included."""
    yield from map(str, node.input)
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield from names_read(attribute.g)
            yield from (str(output.name) for output in attribute.g.output)

"""Values that a Loop carries by its signature only: those that never change, and those of which
nobody reads the first one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx

from quantglow.frontend.context import Call
from quantglow.frontend.values import Value
from quantglow.graph.node import Constant, Node
from quantglow.ops.shape import Expand
from quantglow.symbolic.size import is_free
from quantglow.types import TensorType


@dataclass(frozen=True)
class Carried:
    """The carried values of a Loop by their numbers: all of them, those that stay what they were
    (``fixed``, each with its value), and those whose first value the body does not read."""

    call: Call
    count: int
    fixed: dict[int, Value]
    unread: frozenset[int]

    @staticmethod
    def of(call: Call) -> Carried:
        body, given = call.attributes["body"], call.proto.input[2:]
        count = len(given)
        inner, after = body.input[2:], originals(body)
        fixed = {
            number: call.scope.values[name]
            for number, name in enumerate(given)
            if after[1 + number] == inner[number].name
        }
        read = {*names_read(body), *(output.name for output in body.output)}
        unread = frozenset(n for n in range(count) if inner[n].name not in read)
        return Carried(call, count, fixed, unread)

    @property
    def changing(self) -> list[int]:
        """The values that the loop hands from trip to trip: those that something reads."""
        outputs = self.call.proto.output
        used = {n for n, name in enumerate(outputs[: self.count]) if name in self.call.scope.used}
        return [n for n in range(self.count) if n not in self.fixed and n not in self.unread - used]

    def changing_outputs(self) -> list[str]:
        """The outputs of the ONNX node that are no fixed values, "" for those it does not have."""
        names = [str(name) for name in self.call.proto.output]
        names += [""] * (self.count - len(names))
        return [*(names[number] for number in self.changing), *names[self.count :]]

    def results(self) -> Iterator[tuple[str, Value]]:
        """The outputs of the ONNX node that are fixed values."""
        for number, name in enumerate(self.call.proto.output[: self.count]):
            if number in self.fixed and name:
                yield str(name), self.fixed[number]


def originals(body: onnx.GraphProto) -> list[str]:
    """The outputs of a body by the names of what Identities copy."""
    sources = {
        str(node.output[0]): str(node.input[0]) for node in body.node if node.op_type == "Identity"
    }
    found = []
    for output in body.output:
        name = str(output.name)
        while name in sources:
            name = sources[name]
        found.append(name)
    return found


def names_read(graph: onnx.GraphProto) -> Iterator[str]:
    """The names that nodes of a graph read, those in subgraphs included."""
    for node in graph.node:
        yield from map(str, node.input)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from names_read(attribute.g)
                yield from (str(output.name) for output in attribute.g.output)


def zeros_of(call: Call, kind: TensorType) -> Node:
    """A first value for what the first trip replaces unread."""
    shape = tuple(1 if is_free(size) else size for size in kind.shape)
    zeros = Constant(name=call.derived("unread"), value=np.zeros(shape, kind.dtype.numpy))
    if shape == kind.shape:
        return zeros
    return Expand(name=call.derived("unread"), x=zeros, shape=kind.shape)

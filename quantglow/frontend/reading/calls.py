"""Calls of local functions, noted at the nodes that are put in their place.

The inliner leaves no trace of a call, whose name and operator the user knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import onnx
import onnx.inliner

from quantglow.frontend.nodes.origins import note_calls
from quantglow.frontend.reading.inlining import Key, called_by, key_of

MAX_DEPTH = 16
"""Maximum number of calls that are noted of one node, the innermost first."""

Calls = tuple[onnx.NodeProto, ...]


def with_functions_inlined(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model without local functions; their nodes tell which calls they are from."""
    inlined = onnx.inliner.inline_local_functions(proto)
    functions = {key_of(function): function for function in proto.functions}
    waiting: list[tuple[Sequence[onnx.NodeProto], Sequence[onnx.NodeProto], Calls]]
    waiting = [(proto.graph.node, inlined.graph.node, ())]
    while waiting:
        before, after, outer = waiting.pop()
        for (node, calls), copy in zip(expansion(before, functions, outer), after, strict=False):
            if node.op_type != copy.op_type:
                break  # An inliner that adds nodes: the rest is known by its own names.
            if calls:
                note_calls(copy, (node, *calls) if node.name else calls)
            pairs = zip(graphs_in(node), graphs_in(copy), strict=False)
            waiting += [(one.node, other.node, calls) for one, other in pairs]
    return inlined


def expansion(
    nodes: Iterable[onnx.NodeProto], functions: Mapping[Key, onnx.FunctionProto], outer: Calls
) -> Iterator[tuple[onnx.NodeProto, Calls]]:
    """The nodes with those of the functions that they call in their places, and the calls."""
    waiting = [(iter(nodes), outer)]
    while waiting:
        inner, calls = waiting[-1]
        if (node := next(inner, None)) is None:
            waiting.pop()
        elif (function := functions.get(called_by(node))) is not None:
            waiting.append((iter(function.node), (node, *calls)[:MAX_DEPTH]))
        else:
            yield node, calls


def graphs_in(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """The subgraphs of a node."""
    return [g for a in node.attribute for g in (a.g, *a.graphs) if g.node]

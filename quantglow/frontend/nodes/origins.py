"""The origin of an ONNX node: what the user knows it by.

Which calls of local functions a node was inlined from is in its metadata; a file may have such
metadata of its own, which gives its nodes other names.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace

import onnx

from quantglow.graph.origins import Origin

KEY = "quantglow.calls"
"""Key of the metadata with the calls around a node: name, operator, domain and results of each."""


def origin_of(proto: onnx.NodeProto, outer: Origin | None) -> Origin:
    """The node, in the calls that it was inlined from, and in ``outer``, the node whose subgraph it
    is in."""
    # Without what they are in themselves: hashes of nested ones double with each level.
    outside = (replace(outer, inside=()), *outer.inside) if outer else ()
    around = (*calls_around(proto), *outside)
    results = tuple(filter(None, proto.output))
    return Origin(proto.name, proto.op_type, proto.domain, results, around)


def note_calls(node: onnx.NodeProto, calls: Iterable[onnx.NodeProto]) -> None:
    """Write down which calls a node is from, the innermost first."""
    *inner, outermost = calls
    # Values inside of functions have names of their own, which the model may use for others.
    texts = [[call.name, call.op_type, call.domain] for call in inner]
    texts.append([outermost.name, outermost.op_type, outermost.domain, *outermost.output])
    node.metadata_props.add(key=KEY, value=json.dumps(texts))


def calls_around(node: onnx.NodeProto) -> tuple[Origin, ...]:
    """The calls that were noted, the innermost first."""
    found = [entry.value for entry in node.metadata_props if entry.key == KEY]
    try:
        entries = json.loads(found[-1]) if found else []
        texts = [[str(text) for text in entry] for entry in entries]
        return tuple(
            Origin(name, kind, domain, tuple(results)) for name, kind, domain, *results in texts
        )
    except (ValueError, TypeError, RecursionError):
        return ()  # metadata of the file itself

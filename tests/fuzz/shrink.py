"""Makes a failing case small: fewer outputs, fewer nodes, the same kind of difference."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import onnx
from onnx import shape_inference

from quantglow.backends.onnxruntime.session import failures
from tests.fuzz.compare import session
from tests.fuzz.graphs import Case

Fails = Callable[[Case], bool]


def shrunk(case: Case, fails: Fails) -> Case:
    """A case that still fails and that no single step makes smaller."""
    while smaller := next((c for c in candidates(case) if fails(c)), None):
        case = smaller
    return case


def candidates(case: Case) -> Iterator[Case]:
    """Smaller cases: up to one value only; and values fed instead of computed."""
    inferred = shape_inference.infer_shapes(case.model, strict_mode=True, data_prop=True).graph
    known = {v.name: v for v in (*inferred.value_info, *inferred.output)}
    for position, node in enumerate(case.model.graph.node):
        for name in node.output:
            if position + 1 < len(case.model.graph.node) or len(case.model.graph.output) > 1:
                yield reduced(case, case.model.graph.node[: position + 1], [known[name]], [])
    for node in case.model.graph.node[:-1]:
        rest = [n for n in case.model.graph.node if n is not node]
        fed = [known[name] for name in node.output]
        try:
            smaller = reduced(case, rest, list(case.model.graph.output), fed)
        except failures():  # a value that onnxruntime had left out, because nothing reads it
            continue
        yield smaller


def reduced(
    case: Case,
    nodes: list[onnx.NodeProto],
    outputs: list[onnx.ValueInfoProto],
    fed: list[onnx.ValueInfoProto],
) -> Case:
    """The case with these nodes; the values ``fed`` become inputs with the values they had."""
    nodes = needed(nodes, {o.name for o in outputs})
    read = {name for node in nodes for name in node.input} | {o.name for o in outputs}
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    graph = model.graph
    before = [*graph.input, *fed]
    for part in (graph.node, graph.input, graph.output, graph.initializer):
        del part[:]
    graph.node.extend(nodes)
    graph.input.extend(v for v in before if v.name in read)
    graph.initializer.extend(t for t in case.model.graph.initializer if t.name in read)
    made = {name for node in nodes for name in node.output}
    graph.output.extend(o for o in outputs if o.name in made)
    return Case(model, with_values(case, fed, {v.name for v in graph.input}))


def needed(nodes: list[onnx.NodeProto], names: set[str]) -> list[onnx.NodeProto]:
    """The nodes that these values depend on, in order."""
    kept = []
    for node in reversed(nodes):
        if names.intersection(node.output):
            kept.append(node)
            names = names | set(node.input)
    return kept[::-1]


def with_values(case: Case, fed: list[onnx.ValueInfoProto], names: set[str]) -> tuple:
    if not fed:
        return tuple({n: s[n] for n in names} for s in case.samples)
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    del model.graph.output[:]
    model.graph.output.extend(fed)
    runner = session(model)
    found = []
    for sample in case.samples:
        values = dict(zip((v.name for v in fed), runner.run(None, sample), strict=True))
        found.append({name: values.get(name, sample.get(name)) for name in names})
    return tuple(found)

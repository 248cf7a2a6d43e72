"""Makes a failing case small: fewer outputs, fewer nodes, the same kind of difference."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import onnx
from onnx import helper

from quantglow.ort.session import failures
from tests.fuzz.compare import session
from tests.generators.onnx_models.models import Case, Feeds, read_by

Fails = Callable[[Case], bool]


def shrunk(case: Case, fails: Fails) -> Case:
    """A case that still fails, and that no single step makes smaller."""
    while smaller := next((c for c in candidates(case) if fails(c)), None):
        case = smaller
    return case


def candidates(case: Case) -> Iterator[Case]:
    """Smaller cases: up to one value only, or with values fed instead of computed."""
    try:
        known = types(case)
    except failures():  # the model is not valid
        return
    for position, node in enumerate(case.model.graph.node):
        for name in filter(None, node.output):
            if position + 1 < len(case.model.graph.node) or len(case.model.graph.output) > 1:
                yield reduced(case, case.model.graph.node[: position + 1], [known[name]], [])
    for node in case.model.graph.node[:-1]:
        remaining = [n for n in case.model.graph.node if n is not node]
        fed = [known[name] for name in node.output if name]
        try:
            smaller = reduced(case, remaining, list(case.model.graph.output), fed)
        except failures():  # a value that onnxruntime left out, because nothing reads it
            continue
        yield smaller


def reduced(
    case: Case,
    nodes: list[onnx.NodeProto],
    outputs: list[onnx.ValueInfoProto],
    fed: list[onnx.ValueInfoProto],
) -> Case:
    """The case with these nodes; the values ``fed`` become inputs with their former values."""
    nodes = needed(nodes, {o.name for o in outputs})
    read = {name for node in nodes for name in read_by(node)} | {o.name for o in outputs}
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    graph = model.graph
    before = [*graph.input, *fed]
    for part in (graph.node, graph.input, graph.output, graph.initializer):
        del part[:]
    graph.node.extend(nodes)
    graph.input.extend(v for v in before if v.name in read)
    graph.initializer.extend(t for t in case.model.graph.initializer if t.name in read)
    known = {name for node in nodes for name in node.output}
    known |= {v.name for v in (*graph.input, *graph.initializer)}
    graph.output.extend(o for o in outputs if o.name in known)
    return Case(model, with_values(case, fed, {v.name for v in graph.input}))


def needed(nodes: list[onnx.NodeProto], names: set[str]) -> list[onnx.NodeProto]:
    """The nodes that some values depend on, in order."""
    kept = []
    for node in reversed(nodes):
        if names.intersection(node.output):
            kept.append(node)
            names = names | set(read_by(node))
    return kept[::-1]


def with_values(case: Case, fed: list[onnx.ValueInfoProto], names: set[str]) -> tuple[Feeds, ...]:
    if not fed:
        return tuple({n: s[n] for n in names} for s in case.samples)
    values = computed(case, [v.name for v in fed])
    return tuple(
        {name: item.get(name, sample.get(name)) for name in names}
        for item, sample in zip(values, case.samples, strict=True)
    )


def computed(case: Case, names: list[str]) -> list[Feeds]:
    """onnxruntime's results for some values, for each sample."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    runner = session(model)
    return [dict(zip(names, runner.run(None, s), strict=True)) for s in case.samples]


def types(case: Case) -> dict[str, onnx.ValueInfoProto]:
    """The types of all values that nodes compute."""
    names = [name for node in case.model.graph.node for name in node.output if name]
    return {
        name: helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
        )
        for name, array in computed(case, names)[0].items()
    }

"""A model with steps before its inputs and after its outputs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from itertools import chain
from typing import Any

import onnx

from quantglow import steps
from quantglow.importer.onnx.input_shapes import declared_dims
from quantglow.importer.onnx.nodes.folding import INFERENCE_FAILURES
from quantglow.importer.onnx.reading.light_models import whole
from quantglow.importer.onnx.reading.loading import load_model
from quantglow.importer.onnx.reading.proto import all_names, all_nodes, infer, main_opset
from quantglow.importer.onnx.step_nodes import Chain, following, fresh, preceding
from quantglow.ir.graph.signature import PortDim
from quantglow.support.errors import OptionError


def with_steps(
    model: Any,
    before: steps.ByName[steps.Before],
    after: steps.ByName[steps.After],
) -> onnx.ModelProto:
    """A model (path, bytes or ModelProto) with steps at its inputs and outputs, which keep names.

    The values that were its inputs and outputs are called ``NAME:model``.

    Raises ``ModelError``, and ``OptionError`` for steps that do not fit the model.
    """
    proto, weights = load_model(model)
    extended = onnx.ModelProto()
    extended.CopyFrom(proto)
    graph, used = extended.graph, set(map(str, all_names(extended)))
    initialized = {t.name for t in graph.initializer}
    inputs = {value.name: value for value in graph.input if value.name not in initialized}
    outputs = {value.name: value for value in graph.output}
    at_inputs = _resolve("before", "input", before, inputs)
    at_outputs = _resolve("after", "output", after, outputs)
    _check_not_both(graph, {*at_inputs, *at_outputs})
    ranked = _port_dims(extended, at_outputs)
    inner = {name: fresh(f"{name}:model", used) for name in (*at_inputs, *at_outputs)}
    rename(graph, inner)
    first, last = list[onnx.NodeProto](), list[onnx.NodeProto]()
    for name, before_it in at_inputs.items():
        part = _chain_at(
            "input", name, name, declared_dims(inputs[name]), main_opset(extended), used
        )
        preceding(part, inputs[name], before_it, inner[name])
        first += part.nodes
    for name, after_it in at_outputs.items():
        part = _chain_at("output", name, inner[name], ranked[name], main_opset(extended), used)
        graph.output.extend(following(part, outputs[name], after_it))
        last += part.nodes
    nodes = [*first, *graph.node, *last]
    del graph.node[:]
    graph.node.extend(nodes)
    return whole(extended, weights) if weights else extended


def _chain_at(
    kind: str, name: str, value: str, dims: tuple[PortDim, ...] | None, opset: int, used: set[str]
) -> Chain:
    """A chain that begins at a value."""
    layout = steps.LAYOUTS.get(len(dims or ()), "")
    return Chain(f"{kind} {name!r}", name, value, dims, layout, opset, used)


def _resolve(
    option: str, end: str, by_name: steps.ByName[steps.Kind], ports: Iterable[str]
) -> Mapping[str, tuple[steps.Kind, ...]]:
    """Steps by the name of an input or output.  Raises ``OptionError`` for unknown names."""
    names = list(ports)
    if None in by_name:
        if len(names) != 1:
            raise OptionError(
                f"{option} is one list of steps, but the model has {len(names)} {end}s: {names}. "
                "Remedy: map their names to lists."
            )
        return {names[0]: by_name[None]}
    named = {name: listed for name, listed in by_name.items() if name is not None}
    for name in named.keys() - set(names):
        near = get_close_matches(name, names, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise OptionError(
            f"{option} names {name!r}, which is no {end} of the model{hint}. "
            f"Remedy: name some of {names}."
        )
    return named


def _check_not_both(graph: onnx.GraphProto, with_steps: Collection[str]) -> None:
    """Raise ``OptionError`` for an input with steps that is an output, too."""
    both = {v.name for v in graph.input} & {v.name for v in graph.output}
    if names := sorted(both.intersection(with_steps)):
        raise OptionError(
            f"{names[0]!r} is an input and an output of the model, so no steps can come between. "
            "Remedy: give the output a name of its own by an Identity node."
        )


def _port_dims(
    model: onnx.ModelProto, names: Iterable[str]
) -> dict[str, tuple[PortDim, ...] | None]:
    """The shapes of outputs, as declared or, where these say nothing, as inferred."""
    dims = {value.name: declared_dims(value) for value in model.graph.output}
    if any(dims[name] is None for name in names):
        try:
            more = infer(model).graph.output
        except INFERENCE_FAILURES:
            more = model.graph.output
        dims = {value.name: declared_dims(value) for value in more}
    return dims


def rename(graph: onnx.GraphProto, inner: Mapping[str, str]) -> None:
    """Rename values wherever nodes make or read them, in subgraphs, too."""
    for node in all_nodes(graph.node):
        node.input[:] = [inner.get(name, name) for name in node.input]
        node.output[:] = [inner.get(name, name) for name in node.output]
        subgraphs = (g for a in node.attribute for g in (a.g, *a.graphs) if g.output)
        for value in chain.from_iterable(g.output for g in subgraphs):
            value.name = inner.get(value.name, value.name)
    for value in graph.value_info:
        value.name = inner.get(value.name, value.name)

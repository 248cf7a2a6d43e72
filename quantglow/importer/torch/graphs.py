"""FX graphs of ``torch.compile`` as ONNX: weights become constants, sizes are read from tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import Dim, ExportedProgram
from torch.fx import Graph, GraphModule, Node

from quantglow.importer.exporters import quiet, root_cause
from quantglow.importer.torch.modules import DECOMPOSITIONS, PACKAGES, write_onnx
from quantglow.support.errors import ConversionError


@dataclass(frozen=True)
class GraphSplit:
    """The placeholders of an FX graph by position.

    frozen  weights and buffers of modules, which the compiled model holds
    sizes   integers that are sizes of ``fed`` tensors
    fed     the other tensors
    """

    frozen: Sequence[int]
    sizes: Sequence[int]
    fed: Sequence[int]

    @staticmethod
    def of(graph: Graph) -> GraphSplit:
        """Raises ``ConversionError`` for arguments that are neither tensors nor integers."""
        frozen, sizes, fed = list[int](), list[int](), list[int]()
        for position, node in enumerate(graph.find_nodes(op="placeholder")):
            value = node.meta.get("example_value")
            if isinstance(value, torch.SymInt | int):
                sizes.append(position)
            elif isinstance(value, torch.Tensor):
                (frozen if _is_of_module(node) else fed).append(position)
            else:
                kind = type(value).__name__
                raise ConversionError(f"argument {node.name} is {kind}, no tensor or integer")
        return GraphSplit(frozen, sizes, fed)


def _is_of_module(node: Node) -> bool:
    """Whether a placeholder is a weight or buffer of a module."""
    source = getattr(node, "_dynamo_source", None)
    guard = getattr(source, "guard_source", None)
    return guard is not None and bool(
        guard.is_unspecialized_nn_module() or guard.is_specialized_nn_module()
    )


@dataclass(frozen=True)
class Outputs:
    """The outputs of an FX graph.

    ``computed``: the nodes that the exported graph gives, each once; ``places``: for each output
    ``("computed", i)``, ``("argument", i)`` or ``("constant", value)``.
    """

    computed: Sequence[Node]
    places: Sequence[tuple[str, Any]]

    @staticmethod
    def of(graph: Graph) -> Outputs:
        """Raises ``ConversionError`` for outputs inside of other containers."""
        (output,) = graph.find_nodes(op="output")
        arguments = graph.find_nodes(op="placeholder")
        computed, places = list[Node](), list[tuple[str, Any]]()
        for value in output.args[0]:
            if isinstance(value, list | tuple | dict):
                raise ConversionError("an output is a container of tensors")
            if not isinstance(value, Node):
                places.append(("constant", value))
            elif value in arguments:
                places.append(("argument", arguments.index(value)))
            else:
                if value not in computed:
                    computed.append(value)
                places.append(("computed", computed.index(value)))
        return Outputs(computed, places)

    def gathered(self, results: Sequence[Any], arguments: Sequence[Any]) -> tuple[Any, ...]:
        """The outputs, of what the exported graph gives and of the arguments of the call."""
        sources = {"computed": results.__getitem__, "argument": arguments.__getitem__}
        return tuple(sources[k](v) if k in sources else v for k, v in self.places)


def onnx_of_graph(
    module: GraphModule, arguments: Sequence[Any], split: GraphSplit, outputs: Outputs
) -> Any:
    """The ``ModelProto`` of an FX graph for the tensors of a call: inputs are ``split.fed``, in
    order, and outputs ``outputs.computed``.

    Sizes that the graph leaves free stay free.  Raises ``ConversionError``.
    """
    with quiet(*PACKAGES), torch.no_grad():
        alone = _with_constants(module, arguments, split, outputs)
        inputs = tuple(arguments[position].detach() for position in split.fed)
        program = _export_graph(alone, inputs, _free_dims(module.graph, split))
        _check_pure(program)
        return write_onnx(program)


def _with_constants(
    module: GraphModule, arguments: Sequence[Any], split: GraphSplit, outputs: Outputs
) -> GraphModule:
    """The graph with its weights inside, sizes read from tensors, and ``outputs.computed`` only."""
    graph, copies = Graph(), dict[Node, Any]()
    places = module.graph.find_nodes(op="placeholder")
    alone = GraphModule(module, Graph())
    for number, position in enumerate(split.fed):
        copies[places[position]] = graph.placeholder(f"input_{number}")
    for position in split.frozen:
        name = f"frozen_{position}"
        alone.register_buffer(name, arguments[position].detach())
        copies[places[position]] = graph.get_attr(name)
    for position in split.sizes:
        copies[places[position]] = _resolve_size(places[position], places, split, copies, graph)
    for node in module.graph.nodes:
        if node.op not in ("placeholder", "output"):
            copies[node] = graph.node_copy(node, lambda n: copies[n])
    graph.output(tuple(copies[node] for node in outputs.computed))
    for name in {n.target.partition(".")[0] for n in graph.nodes if n.op in ("get_attr",)}:
        if not hasattr(alone, name):
            setattr(alone, name, getattr(module, name))
    alone.graph = graph
    return alone.eval()


def _resolve_size(
    argument: Node, places: Sequence[Node], split: GraphSplit, copies: dict[Node, Any], graph: Graph
) -> Node:
    """A node that reads an integer argument from the shape of a tensor.

    Raises ``ConversionError`` where it is not a size of one.
    """
    symbol = argument.meta["example_value"]
    for position in split.fed:
        tensor = places[position]
        for axis, size in enumerate(tensor.meta["example_value"].shape):
            if str(size) == str(symbol):
                return graph.call_function(torch.ops.aten.sym_size.int, (copies[tensor], axis))
    raise ConversionError(f"the integer argument {argument.name} is the size of no tensor")


def _free_dims(graph: Graph, split: GraphSplit) -> tuple[dict[int, Any], ...]:
    """For each tensor that is fed, its axes whose size is free."""
    places = graph.find_nodes(op="placeholder")
    shapes = (places[position].meta["example_value"].shape for position in split.fed)
    return tuple(
        {axis: Dim.AUTO for axis, size in enumerate(shape) if not isinstance(size, int)}
        for shape in shapes
    )


def _export_graph(
    module: GraphModule, inputs: tuple[Any, ...], dims: tuple[dict[int, Any], ...]
) -> ExportedProgram:
    """The program of a graph, without operators in place.  Raises ``ConversionError``."""
    try:
        return torch.export.export(module, inputs, dynamic_shapes=dims).run_decompositions(
            dict(DECOMPOSITIONS)
        )
    except Exception as error:
        raise ConversionError(f"torch.export refuses the graph: {root_cause(error)}") from error


def _check_pure(program: ExportedProgram) -> None:
    """Raise ``ConversionError`` for graphs that change tensors in place or draw numbers."""
    signature = program.graph_signature
    if changed := [*signature.user_inputs_to_mutate, *signature.buffers_to_mutate]:
        raise ConversionError(f"the graph changes a tensor in place ({changed[0]})")
    if drawn := next(_random_calls(program.graph_module), None):
        raise ConversionError(f"the graph draws random numbers ({drawn.target})")


DRAWS_NOTHING = {"dropout_p": 0, "dropout": 0, "p": 0, "train": False, "training": False}
"""Arguments by name, and the value with which a random operator of torch draws no number."""


def _random_calls(module: GraphModule) -> Iterator[Node]:
    """Calls that draw random numbers, those in branches and bodies of loops included."""
    for graph in (part.graph for part in module.modules() if isinstance(part, GraphModule)):
        yield from (node for node in graph.nodes if _draws(node))


def _draws(node: Node) -> bool:
    """Whether a call draws random numbers: its operator may, and its arguments let it."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    if torch.Tag.nondeterministic_seeded not in node.target.tags:
        return False
    schema = node.target._schema.arguments
    arguments = {argument.name: argument.default_value for argument in schema}
    arguments |= zip([argument.name for argument in schema], node.args, strict=False)
    arguments |= node.kwargs
    return not any(arguments.get(name) == value for name, value in DRAWS_NOTHING.items())

"""The border of a bundle: operators that are left to the caller, and the values that cross.

A graph is cut into segments.  A segment whose operators are compiled and whose sizes are fixed
becomes a function; the caller computes the others, between the functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from quantglow.export.bundle.contents import C_TYPES, Contents
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input, Node
from quantglow.ir.graph.origins import Origin, find_origins
from quantglow.ir.ops.external import External
from quantglow.ir.types import TensorType
from quantglow.support.classes import Concise, cached_property
from quantglow.support.errors import BackendError
from quantglow.transforms.partition import GraphPart, cut_graph
from quantglow.transforms.size_sources import late_sizes

FUNCTION, CALLER = range(2)
"""Executors of a segment."""


@dataclass(frozen=True)
class CallerOperator:
    """An operator that the caller computes, and the reason."""

    name: str
    op: str
    reason: str


@dataclass(frozen=True)
class BorderValue:
    """A value that crosses the border; a size that is known at run time is a text in its shape.

    ``real = scale * (q - zero_point)``; ``scale``: None for values that are not quantized.
    """

    name: str
    c_type: str
    shape: tuple[int | str, ...]
    scale: float | None
    zero_point: int | None

    @staticmethod
    def of(name: str, kind: TensorType) -> BorderValue:
        """The value of a type.  Raises ``BackendError`` for one that no C type is."""
        if kind.dtype not in C_TYPES:
            raise BackendError(
                f"{name!r} has no type in C: its shape is known when the model runs, or it is no "
                "tensor. Remedy: cut the model before it, by onnx.utils.extract_model."
            )
        shape = tuple(
            size if isinstance(size, int) else str(size).strip("{}") for size in kind.shape
        )
        quant = kind.quant if kind.quant and kind.quant.axis is None else None
        scale, zero_point = (quant.scale, quant.zero_point) if quant else (None, None)
        return BorderValue(name, C_TYPES[kind.dtype], shape, scale, zero_point)

    def __str__(self) -> str:
        quant = f", {self.scale:.9g} * (q - {self.zero_point})" if self.scale is not None else ""
        return f"{self.name}: {self.c_type} [{', '.join(map(str, self.shape))}]{quant}"


@dataclass(frozen=True)
class CallerSegment:
    """Operators of a model that its caller computes: they read values and give results."""

    operators: tuple[CallerOperator, ...]
    reads: tuple[BorderValue, ...]
    results: tuple[BorderValue, ...]

    @staticmethod
    def of(graph: Graph, part: GraphPart) -> CallerSegment:
        """The part of a graph that is the caller's."""
        members, ends = set(part.nodes), {node for _, node in graph.outputs}
        results = (
            node for node in part.nodes if node in ends or not members.issuperset(graph.users[node])
        )
        return CallerSegment(
            tuple(_operators(graph, part.nodes)),
            tuple(BorderValue.of(node.name, node.type) for node in part.graph.inputs),
            tuple(BorderValue.of(node.name, node.type) for node in results),
        )

    def lines(self) -> Iterator[str]:
        """The operators and the values, one a line."""
        yield from (f"{each.name} ({each.op}): {each.reason}" for each in self.operators)
        yield from (f"reads {value}" for value in self.reads)
        yield from (f"gives {value}" for value in self.results)


@dataclass(frozen=True, eq=False, repr=False)
class Bundle(Concise):
    """Functions, and what the caller computes between them, in the order of a run.

    ``results``: the outputs of the model, and the values that they are.
    """

    name: str
    segments: tuple[Contents | CallerSegment, ...]
    results: tuple[tuple[str, str], ...]

    @cached_property
    def functions(self) -> tuple[Contents, ...]:
        """The functions in the order of a run."""
        return tuple(part for part in self.segments if isinstance(part, Contents))

    @property
    def is_split(self) -> bool:
        """Whether the caller computes a part of the model."""
        return len(self.functions) < len(self.segments)

    @property
    def largest(self) -> Contents:
        """The function with the largest arena, in which all may run, one after the other."""
        return max(self.functions, key=lambda function: function.program.arena_nbytes)

    def order(self) -> Iterator[str]:
        """The functions, and operators and values of the caller, one a line."""
        for number, part in enumerate(self.segments, 1):
            if isinstance(part, Contents):
                yield f"{number}. {part.name}_run"
            else:
                yield f"{number}. the caller:"
                yield from (f"   {line}" for line in part.lines())


def _operators(graph: Graph, nodes: Iterable[Node]) -> Iterator[CallerOperator]:
    """The nodes of the user's model that nodes of a graph compute, each once."""
    deciding = {symbol: late.node.name for symbol, late in late_sizes(graph).items()}
    listed = set[Origin]()
    for node in nodes:
        origins = find_origins(node, graph.origins)
        for origin in (*origins.main, *origins.fused):
            if origin not in listed:
                listed.add(origin)
                name = origin.name or next(iter(origin.results), node.name)
                yield CallerOperator(name, origin.op_type, _reason(node, deciding))


def _reason(node: Node, deciding: Mapping[str, str]) -> str:
    """Why a node is left to the caller; ``deciding``: the results that have late sizes."""
    if isinstance(node, External):
        return node.reason
    names = sorted({deciding[symbol] for symbol in _symbols(node) if symbol in deciding})
    return f"sizes of {', '.join(names)} are known at run time"


def _symbols(node: Node) -> frozenset[str]:
    """The sizes of an operator and of what it reads that are known at run time."""
    return frozenset[str]().union(*(value.symbols for value in (node, *node.operands)))


def split_graph(graph: Graph) -> tuple[Graph | CallerSegment, ...]:
    """The segments of a graph in the order of a run: graphs of functions, and what the caller
    computes.  Raises ``BackendError`` where nothing is left for a function.
    """
    positions = {
        node: CALLER if isinstance(node, External) or _symbols(node) else FUNCTION
        for node in graph.compute_nodes()
    }
    parts = tuple(cut_graph(graph, positions))
    if all(part.position == CALLER for part in parts):
        raise BackendError(
            "partition=True, but the caller would compute all operators: onnxruntime runs them, or "
            "their sizes are known at run time. Remedy: run the ONNX model in onnxruntime."
        )
    if constants := [name for name, node in graph.outputs if isinstance(node, Constant)]:
        raise BackendError(
            f"no function of a bundle gives {', '.join(map(repr, constants))}, which is constant. "
            "Remedy: leave the output out of the model."
        )
    return tuple(
        part.graph if part.position == FUNCTION else CallerSegment.of(graph, part) for part in parts
    )


def with_output_names(graph: Graph) -> Graph:
    """The graph with nodes that are named as the outputs that they give, where names are free: an
    output has one name wherever it crosses the border."""
    names = {
        node.name: name
        for name, node in graph.outputs
        if not isinstance(node, Input | Constant) and name not in graph.names
    }

    def rename(node: Node) -> Node:
        return replace(node, name=names[node.name]) if node.name in names else node

    return graph.rebuild(rename)

"""Graph: named inputs and outputs, all nodes between them, and its text.

::

    graph 'source hash'
    declared 'x': float16
    'x': f32[1x28x28x1] = Input(tensor=TensorType('f32', (1, 28, 28, 1)))
    'w': f32[3x3x1x8] = Constant(value=ArrayMark('f32', (3, 3, 1, 8), '2f0c6b1e9d77'))
    'y': f32[1x26x26x8] = Conv(x='x', w='w')
    output 'y' = 'y'

The body of a loop stands before the first node that runs it, under its label::

    body 'state'
      't': f32[8] = Input(tensor=TensorType('f32', (8,)))
      'state': f32[8] = Tanh(x='t')
      output 'state' = 'state'
    'y': f32[8] = Loop(carried=('x',), sliced=(), captured=(), body=Graph('state'), trips=9)

A line ``declared`` has the float type of an input or output that is computed as float32, or the
type of an output that is a sequence, an optional or a map.  The type before ``=`` is for people,
and checked when read.  Attributes that have the default of their declaration are left out.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

from quantglow.ir.graph.attributes import BodyMark, encode, register
from quantglow.ir.graph.node import Constant, Input, Node, operand_fields
from quantglow.ir.graph.origins import Lineage, Origin, Origins
from quantglow.ir.graph.signature import Port, Signature
from quantglow.support.classes import cached_property
from quantglow.support.errors import ModelError
from quantglow.support.views import HasDrawing


@dataclass(frozen=True, eq=False)
class Graph(HasDrawing):
    """A dataflow graph.  Immutable: passes build new graphs.

    ``outputs`` pairs the names that the user knows with the nodes that compute them.
    ``source_hash`` binds profiles to the ONNX model of the graph.  ``declared`` has the float types
    that the model declares instead of float32, and the types of opaque values, by the names of
    inputs and outputs.  ``sources``: the nodes of the model; ``origins``: those that a node
    computes, by its name.  ``aliases``: name of a value that became part of another one -> the name
    of that, empty if there is none.
    """

    inputs: tuple[Input, ...]
    outputs: tuple[tuple[str, Node], ...]
    source_hash: str = ""
    declared: Mapping[str, str] = field(default_factory=dict)
    sources: tuple[Origin, ...] = field(default=(), repr=False)
    origins: Mapping[str, Origins] = field(default_factory=dict, repr=False)
    aliases: Mapping[str, str] = field(default_factory=dict, repr=False)

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """Inputs first, then every node that an output needs, operands before users."""
        return topological_order([*self.inputs, *(node for _, node in self.outputs)])

    @property
    def label(self) -> str:
        """The name that the text of a body has."""
        return self.outputs[0][1].name

    def every_node(self) -> Iterator[Node]:
        """The nodes, those of bodies included; a body that several nodes run comes once."""
        visited: set[Graph] = set()
        for node in self.nodes:
            for body in node.bodies:
                if body not in visited:
                    visited.add(body)
                    yield from body.every_node()
            yield node

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of every node."""
        return frozenset([node.name for node in self.every_node()])

    @cached_property
    def has_free_sizes(self) -> bool:
        """Whether a node depends on free dimensions."""
        return any(node.has_free_sizes for node in self.nodes)

    @cached_property
    def symbols(self) -> frozenset[str]:
        """Names of the free dimensions on which its nodes depend."""
        return frozenset[str]().union(*(node.symbols for node in self.nodes))

    @cached_property
    def users(self) -> Mapping[Node, tuple[Node, ...]]:
        """Readers of each node, once for each operand position."""
        users: dict[Node, list[Node]] = {node: [] for node in self.nodes}
        for node in self.nodes:
            for operand in node.operands:
                users[operand].append(node)
        return {node: tuple(readers) for node, readers in users.items()}

    @cached_property
    def use_counts(self) -> Mapping[Node, int]:
        """Number of readers of each node; an output of the graph counts as one."""
        counts = dict.fromkeys(self.nodes, 0)
        for node in self.nodes:
            for operand in node.operands:
                counts[operand] += 1
        for _, node in self.outputs:
            counts[node] += 1
        return counts

    @cached_property
    def signature(self) -> Signature:
        """The inputs and outputs, all with fixed shapes."""
        return Signature(
            tuple(Port.of(node.name, node.type, self.declared) for node in self.inputs),
            tuple(Port.of(name, node.type, self.declared) for name, node in self.outputs),
        )

    def by_name(self, name: str) -> Node:
        """The node that computes the value ``name``.  Raises ``KeyError``, and ``ModelError`` if
        two nodes have one name.
        """
        return self._by_name[name]

    def check_names(self) -> None:
        """Raise ``ModelError`` if two nodes have one name: files and tables of names would mix them
        up.
        """
        _ = self._by_name

    @cached_property
    def _by_name(self) -> dict[str, Node]:
        nodes = tuple(self.every_node())
        counts = Counter(node.name for node in nodes)
        if len(counts) < len(nodes):
            twice = next(name for name, count in counts.items() if count > 1)
            kinds = " and ".join(node.op for node in nodes if node.name == twice)
            raise ModelError(
                f"two nodes are called {twice!r} ({kinds}). Remedy: names are unique in a graph; "
                "make new ones with quantglow.ir.graph.origins."
            )
        return {node.name: node for node in self.nodes}

    def compute_nodes(self) -> tuple[Node, ...]:
        """Nodes that are neither inputs nor constants."""
        return tuple(n for n in self.nodes if not isinstance(n, Input | Constant))

    def with_outputs(self, nodes: Iterable[Node]) -> Graph:
        """The graph with the same names on other nodes; ``self`` if they are the same objects."""
        new = tuple((name, node) for (name, _), node in zip(self.outputs, nodes, strict=True))
        if all(a is b for (_, a), (_, b) in zip(self.outputs, new, strict=True)):
            return self
        return replace(self, outputs=new)

    def rebuild(self, rule: Callable[[Node], Node]) -> Graph:
        """Map every node, operands first; ``rule`` gets nodes whose operands are mapped.

        New nodes have the origins of those that they replace.
        """
        new: dict[Node, Node] = {}
        lineage: Lineage | None = None
        for node in self.nodes:
            operands = tuple([new[operand] for operand in node.operands])
            mapped = node if operands == node.operands else node.with_operands(operands)
            replacement = rule(mapped)
            if self.origins and replacement is not mapped:
                lineage = lineage or Lineage(dict(self.origins), set(new.values()))
                lineage.follow(mapped, replacement)
            elif lineage is not None:
                lineage.present.add(replacement)
            new[node] = replacement
        inputs = tuple(new[i] for i in self.inputs)
        if not all(isinstance(i, Input) for i in inputs):
            raise ModelError("a pass replaced a graph input by something else")
        outputs = self.with_outputs(new[node] for _, node in self.outputs)
        if outputs is self and all(a is b for a, b in zip(inputs, self.inputs, strict=True)):
            return self
        origins = self.origins if lineage is None else lineage.origins
        return replace(outputs, inputs=inputs, origins=origins)  # type: ignore[arg-type]

    def map_bodies(self, change: Callable[[Graph], Graph]) -> Graph:
        """The graph with changed bodies; nodes that run one body still do."""
        bodies: dict[Graph, Graph] = {}

        def changed(body: Graph) -> Graph:
            if body not in bodies:
                bodies[body] = change(body)
            return bodies[body]

        return self.rebuild(lambda node: node.with_bodies(changed))

    def verify(self) -> None:
        """Raise ``ModelError`` if a name is used twice or a reachable input is not declared."""
        self.check_names()
        declared = set(self.inputs)
        for node in self.nodes:
            if isinstance(node, Input) and node not in declared:
                raise ModelError(f"input {node.name!r} is used but not declared")
            if node.infer() != node.type:
                raise ModelError(f"{node!r} does not have the type its operands imply")
            for body in node.bodies:
                body.verify()

    def __str__(self) -> str:
        return graph_text(self.source_hash, self.declared, self.nodes, self.outputs)


register(Graph, lambda graph: (graph.label,), BodyMark)


def topological_order(
    roots: Iterable[Node], visit: Callable[[Node], Sequence[Node]] = attrgetter("operands")
) -> tuple[Node, ...]:
    """Nodes with operands before users, depth first, without recursion: models are thousands deep.

    ``visit`` gives the nodes that come before a node: its operands, in the order in which they are
    computed.
    """
    order: dict[Node, None] = {}
    stack: list[tuple[Node, bool]] = [(root, False) for root in reversed(list(roots))]
    while stack:
        node, expanded = stack.pop()
        if node in order:
            continue
        if expanded:
            order[node] = None
            continue
        stack.append((node, True))
        stack.extend((o, False) for o in reversed(visit(node)) if o not in order)
    return tuple(order)


def as_it_is(value: object) -> object:
    """The attribute value itself."""
    return value


def graph_text(
    source_hash: str,
    declared: Mapping[str, str],
    nodes: Iterable[Node],
    outputs: Iterable[tuple[str, Node]],
    shown: Callable[[object], object] = as_it_is,
) -> str:
    """The text of a graph whose ``nodes`` are in order, operands before users.

    ``shown`` gives the text of an attribute value.
    """
    lines = [f"graph {source_hash!r}"]
    lines += [f"declared {name!r}: {kind}" for name, kind in declared.items()]
    lines += _inner_lines(nodes, outputs, shown)
    return "\n".join(lines) + "\n"


def _inner_lines(
    nodes: Iterable[Node],
    outputs: Iterable[tuple[str, Node]],
    shown: Callable[[object], object] = as_it_is,
) -> Iterator[str]:
    """A line for each node and output; bodies stand before the first node that runs them."""
    bodies: set[Graph] = set()
    for node in nodes:
        for body in node.bodies:
            if body not in bodies:
                bodies.add(body)
                yield f"body {body.label!r}"
                yield from (f"  {line}" for line in _inner_lines(body.nodes, body.outputs, shown))
        yield _node_line(node, shown)
    yield from (f"output {name!r} = {node.name!r}" for name, node in outputs)


def _node_line(node: Node, shown: Callable[[object], object] = as_it_is) -> str:
    """``'name': type = Op(operands and attributes)``"""
    return f"{node.name!r}: {node.type} = {node.op}({', '.join(_arguments(node, shown))})"


def _arguments(node: Node, shown: Callable[[object], object]) -> Iterable[str]:
    for name in operand_fields(type(node)):
        value = getattr(node, name)
        if value is not None:
            yield f"{name}={encode(_names(value))}"
    yield from (f"{name}={encode(shown(v))}" for name, v in text_attributes(node).items())


def text_attributes(node: Node) -> dict[str, object]:
    """The attributes that differ from the defaults of their declaration."""
    defaults = {field.name: field.default for field in dataclasses.fields(node)}
    return {
        name: value
        for name, value in node.attributes().items()
        if not (type(value) is type(defaults[name]) and encode(value) == encode(defaults[name]))
    }


def _names(value: Node | tuple[Node, ...]) -> str | tuple[str, ...]:
    return tuple(n.name for n in value) if isinstance(value, tuple) else value.name

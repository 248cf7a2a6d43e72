"""Searches for operators that quantization hurts most for the time that float costs there.

``float_rules`` keeps them in float, and says why.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

import numpy as np

from quantglow.interpreter.branches import find_branches
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.kinds import Trait
from quantglow.ir.graph.node import Constant, Input, Node
from quantglow.ir.ops import (
    Abs,
    Add,
    Ceil,
    Clip,
    Concat,
    Conv,
    Elementwise,
    External,
    Floor,
    Gather,
    HardSigmoid,
    LayerNormalization,
    MatMul,
    Mul,
    Pad,
    Pow,
    Reciprocal,
    ReduceMax,
    ReduceMean,
    ReduceMin,
    ReduceSum,
    Reshape,
    Sigmoid,
    Slice,
    Softmax,
    Sqrt,
    Sub,
    Tanh,
    Transpose,
)
from quantglow.ir.ops.binary import Binary
from quantglow.ir.ops.contraction import Contraction
from quantglow.ir.ops.unary import Unary
from quantglow.ir.symbolic.size import decide
from quantglow.profiling import Range
from quantglow.quantization.plan.fourier_transforms import transforms
from quantglow.support.arrays import Array

MIN_BINS = 4
"""Minimum number of distances of a distribution."""

GATES = (HardSigmoid, Sigmoid)
ARITHMETIC = (*GATES, Mul, Sub, Tanh)
CELL_PARTS = (Binary, Unary)
UNDER_ROOTS = (Binary, ReduceMean, ReduceSum)
UNDER_LOGARITHMS = (*UNDER_ROOTS, Clip, Concat, Contraction, MatMul, Sqrt)
BEFORE_SPECTRA = (Binary, Concat, Gather, Pad)
ROUNDINGS = (Ceil, Floor)
ROUNDING_STEPS = ("ceil", "floor", "int32", "int64", "rint")
BEHIND_ROUNDINGS = (Binary, Clip, Concat, ReduceMax, ReduceMin, ReduceSum)
LEADS_ON = (Elementwise, *ROUNDINGS, *BEHIND_ROUNDINGS)
BEFORE_ROUNDINGS = (*CELL_PARTS, Contraction, LayerNormalization, MatMul, ReduceMean, ReduceSum)
BEHIND_SPECTRA = (Abs, Binary, Concat, Pow, ReduceMean, ReduceSum, Sqrt)

NARROWER = 2.0
"""Minimum ratio of the range of a whole to that of its part from which the part is cut out
first."""


def with_feeders(
    graph: Graph,
    nodes: Iterable[Node],
    kinds: tuple[type[Node], ...],
    others: Set[Node] = frozenset(),
) -> list[Node]:
    """The nodes, and all nodes of ``kinds``, among ``others`` or that only rearrange elements that
    only such nodes read.
    """
    selected = set(nodes)
    outputs = {node for _, node in graph.outputs}
    for node in reversed(graph.compute_nodes()):
        readers = graph.users[node]
        fed = readers and node not in outputs and all(user in selected for user in readers)
        if fed and (isinstance(node, kinds) or node.has(Trait.REARRANGES) or node in others):
            selected.add(node)
    return [node for node in graph.compute_nodes() if node in selected]


def cells(graph: Graph) -> set[Node]:
    """States of recurrent cells, and the operators from one state of a cell to another.

    LSTM   c' = sigmoid(f) c + sigmoid(i) tanh(g),   h' = sigmoid(o) tanh(c')
    GRU    h' = n + sigmoid(z) (h - n)  or  (1 - sigmoid(z)) n + sigmoid(z) h,  n = tanh(…)
    RNN    h' = tanh(x W + h R + b)

    A first step is shorter if its state is known to be 0; it is found from the second one.
    """
    nodes = graph.compute_nodes()
    states = {node for node in nodes if _is_gated_sum(node)} | set(_simple_states(nodes))
    count = -1
    while count != len(states):
        count = len(states)
        states.update(
            o for node in tuple(states) for o in node.operands if isinstance(o, ARITHMETIC)
        )
        states.update(node for node in nodes if is_state(node, states))
    return states


def _is_gated_sum(node: Node) -> bool:
    """Whether a node sums gated values, one of which is a Tanh."""
    if not isinstance(node, Add):
        return False
    factors = [*_product_factors(node.x), *_product_factors(node.y)]
    return any(isinstance(f, GATES) for f in factors) and any(isinstance(f, Tanh) for f in factors)


def is_state(node: Node, cell: Set[Node]) -> bool:
    """Whether a node is tanh(c') of a cell, or that times a gate."""
    if isinstance(node, Tanh):
        return node.x in cell
    operands = node.operands if isinstance(node, Mul) else ()
    gated = any(isinstance(o, GATES) for o in operands)
    return gated and any(isinstance(o, Tanh) and o in cell for o in operands)


def _simple_states(nodes: Sequence[Node]) -> Iterator[Node]:
    """States of an RNN: tanh of sums of two products, one of which is shared by all steps."""
    sums = {node: _summed_products(node.x) for node in nodes if isinstance(node, Tanh)}
    recurrent = set().union(*(terms for terms in sums.values() if len(terms) > 1))
    return (node for node, terms in sums.items() if terms & recurrent)


def _product_factors(node: Node) -> Iterator[Node]:
    """The values that a product or difference is computed from; any other node itself."""
    if isinstance(node, Mul | Sub):
        for operand in node.operands:
            yield from _product_factors(operand)
    else:
        yield node


def _summed_products(node: Node) -> set[Node]:
    """The matrix products that a sum adds."""
    if isinstance(node, Contraction | MatMul):
        return {node}
    if node.has(Trait.REARRANGES):
        return _summed_products(node.operands[0])
    if isinstance(node, Add):
        return _summed_products(node.x) | _summed_products(node.y)
    return set()


def roots(graph: Graph) -> Iterator[Node]:
    """Square roots, and reciprocals of square roots."""
    for node in graph.compute_nodes():
        if isinstance(node, Sqrt) or (isinstance(node, Reciprocal) and isinstance(node.x, Sqrt)):
            yield node


def narrow_parts(graph: Graph, floats: Set[Node], ranges: Mapping[Node, Range]) -> Iterator[Node]:
    """Slices that are much narrower than the values they are cut out of, which are not rounded
    yet.
    """
    narrow: set[Node] = set()
    for node in graph.compute_nodes():
        if not isinstance(node, Slice) or node not in ranges or node.x not in ranges:
            continue
        is_float = isinstance(node.x, Input) or node.x in floats or node.x in narrow
        if is_float and width(ranges[node]) * NARROWER <= width(ranges[node.x]):
            narrow.add(node)
            yield node


def width(values: Range) -> float:
    """Width of the range that int8 represents, which includes 0."""
    return values.union(Range(0.0, 0.0)).width


def spectra(graph: Graph) -> list[Node]:
    """Fourier transforms, the filters and moves that only they read, and the operators computed
    from them alone, up to the first products.
    """
    selected = transforms(graph)
    products: set[Node] = set()
    for node in graph.compute_nodes():
        computed = [o for o in node.operands if not isinstance(o, Constant)]
        if computed and selected.issuperset(computed):
            if isinstance(node, BEHIND_SPECTRA) or node.has(Trait.REARRANGES):
                selected.add(node)
            elif isinstance(node, Contraction | MatMul):
                products.add(node)
    filters = {node for node in graph.compute_nodes() if is_filter(node)} if selected else set()
    return with_feeders(graph, selected | products, BEFORE_SPECTRA, filters)


def is_filter(node: Node) -> bool:
    """Whether a node is a Conv that filters one signal, as to halve its sampling rate."""
    if not isinstance(node, Conv):
        return False
    inputs, outputs = node.x.type.shape[-1], node.type.shape[-1]
    return decide(inputs == outputs) and decide(outputs == 1)


def conditions(graph: Graph, floats: Set[Node]) -> list[Node]:
    """Conditions of branches, with the operators before them, up to products, that no int8 operator
    reads.
    """
    selected = {branch.condition for branch in find_branches(graph)}
    for node in reversed(graph.compute_nodes() if selected else []):
        readers = set(graph.users[node])
        leads = readers & selected and all(user in selected or user in floats for user in readers)
        if leads and not isinstance(node, Contraction | MatMul):
            selected.add(node)
    return [node for node in graph.compute_nodes() if node in selected]


def lengths(graph: Graph) -> set[Node]:
    """Roundings to whole numbers that are summed, as durations are, or that another runtime
    reads.
    """
    deciding: set[Node] = set()
    for node in reversed(graph.compute_nodes()):
        leads_on = isinstance(node, LEADS_ON) or node.has(Trait.REARRANGES)
        decides = leads_on and not deciding.isdisjoint(graph.users[node])
        if decides or isinstance(node, ReduceSum | External):
            deciding.add(node)
    return {node for node in deciding if _is_rounding(node)}


def _is_rounding(node: Node) -> bool:
    """Whether a node rounds floats to whole numbers."""
    if isinstance(node, Elementwise) and any(not o.type.dtype.is_float for o in node.args):
        return False
    return isinstance(node, ROUNDINGS) or (
        isinstance(node, Elementwise)
        and any(part.op in ROUNDING_STEPS for part in node.expression.parts())
    )


def joined_results(graph: Graph) -> list[Node]:
    """Concats that lead to results only, with the moves between."""
    outputs = {node for _, node in graph.outputs}
    leaving: set[Node] = set()
    for node in reversed(graph.compute_nodes()):
        readers = graph.users[node]
        leaves = all(user in leaving for user in readers) if readers else node in outputs
        if leaves and (isinstance(node, Concat) or node.has(Trait.REARRANGES)):
            leaving.add(node)
    return [node for node in graph.compute_nodes() if node in leaving and leads(node, leaving)]


def leads(node: Node, leaving: Set[Node]) -> bool:
    """Whether the node is a Concat of computed parts, or moves the result of one."""
    if isinstance(node, Concat):
        return any(not isinstance(part, Constant) for part in node.parts)
    return node.operands[0] in leaving and leads(node.operands[0], leaving)


def box_decoders(graph: Graph) -> list[Node]:
    """Integral layers, the moves of logits before them, and the operators from these moves to the
    results, in boxes and in scores, in the order of the graph.
    """
    integrals = {node for node in graph.compute_nodes() if _is_integral(node)}
    selected = set(integrals)
    for node in integrals:
        selected.update(_moved_logits(node))
    for node in graph.compute_nodes():
        computed = [o for o in node.operands if not isinstance(o, Constant)]
        if decodes(node) and selected.intersection(computed):
            selected.add(node)
    return [node for node in graph.compute_nodes() if node in selected]


def moves(node: Node) -> bool:
    """Whether a node joins values or gives their elements another place."""
    return isinstance(node, Concat) or node.has(Trait.REARRANGES)


def decodes(node: Node) -> bool:
    """Whether a node may be a step from distributions to boxes and scores."""
    return moves(node) or isinstance(node, Binary | Unary | Softmax)


def _is_integral(node: Node) -> bool:
    """Whether a node multiplies a Softmax by distances."""
    match node:
        case Contraction(x=x, w=Constant(value=distances)):
            return _is_softmax(x) and distances.shape[-1] == 1 and _is_arange(distances)
        case MatMul(x=x, y=Constant(value=distances)) | Mul(x=x, y=Constant(value=distances)):
            return _is_softmax(x) and _is_arange(distances)
    return False


def _is_softmax(node: Node) -> bool:
    """Whether a node is a Softmax, or moves one."""
    while isinstance(node, Reshape | Transpose):
        node = node.x
    return isinstance(node, Softmax)


def _is_arange(distances: Array) -> bool:
    """Whether constants are 0, 1, ... n - 1 times a step."""
    flat = distances.reshape(-1)
    step = flat[1] if flat.size > 1 else 0
    steps = np.arange(flat.size) * step
    return bool(flat.size >= MIN_BINS and step > 0 and np.allclose(flat, steps))


def _moved_logits(integral: Node) -> Iterator[Node]:
    """The Softmax of an integral layer and all moves between it and the products of its logits."""
    pending, visited = [integral.operands[0]], set[Node]()
    while pending:
        node = pending.pop()
        if node in visited or not (moves(node) or isinstance(node, Softmax)):
            continue
        visited.add(node)
        yield node
        pending += [o for o in node.operands if not isinstance(o, Constant | Input)]

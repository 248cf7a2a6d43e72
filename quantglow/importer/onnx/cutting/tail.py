"""A tail cut in two: nodes that decide shapes, and what can be compiled once these are known.

Behind NonZero, NonMaxSuppression and their like, shapes are those of the arrays that arrive.  The
nodes behind them are a model of its own whose inputs have free dimensions.  It is worth compiling
where it has products or recurrences; else onnxruntime runs the whole tail.  A Loop alone at the
beginning has a body that may be compiled, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import chain

import onnx

from quantglow.importer.onnx.cutting.deferred_loops import LateLoop, LoopNode
from quantglow.importer.onnx.nodes.folding import INFERENCE_FAILURES
from quantglow.importer.onnx.nodes.values import graph_dtype
from quantglow.importer.onnx.reading.proto import all_nodes, infer
from quantglow.importer.onnx.resolvers.external import read_names
from quantglow.support.classes import cached_property

HEAVY = frozenset(
    {
        *("Attention", "Conv", "ConvInteger", "ConvTranspose", "Einsum", "FusedMatMul", "GRU"),
        *("Gemm", "GroupQueryAttention", "LSTM", "LinearAttention", "MatMul", "MatMulInteger"),
        *("MatMulNBits", "MultiHeadAttention", "QLinearConv", "QLinearMatMul", "RNN"),
    }
)
"""Operators that make a tail worth compiling."""


@dataclass(frozen=True)
class Behind:
    """The parts of a tail.

    first     ONNX model for onnxruntime: nodes that decide shapes, and those of other types
    suffix    ONNX model of the others, which reads values of the first and inputs of the tail;
              without outputs where there are none
    loop      the first part, if that is a Loop whose body is a model
    """

    first: onnx.ModelProto
    suffix: onnx.ModelProto
    loop: LateLoop | None = None


def divide(tail: onnx.ModelProto, deferred: Collection[str]) -> Behind | None:
    """The parts of the tail of a ``Split`` with its ``deferred`` values; None where it begins with
    no Loop, and nothing after its first nodes is worth compiling."""
    return _Tail(tail, frozenset(deferred)).parts()


def begins_with_loop(tail: onnx.ModelProto, deferred: Collection[str]) -> bool:
    """Whether all of a tail is a Loop whose body is a model, and what comes behind it."""
    return _Tail(tail, frozenset(deferred)).loop is not None


@dataclass(frozen=True, eq=False)
class _Tail:
    tail: onnx.ModelProto
    names: frozenset[str]

    @property
    def graph(self) -> onnx.GraphProto:
        return self.tail.graph

    @cached_property
    def nodes(self) -> list[onnx.NodeProto]:
        return list(self.graph.node)

    @cached_property
    def makers(self) -> dict[str, int]:
        """Numbers of nodes by the names of their results."""
        nodes = enumerate(self.nodes)
        return {name: number for number, node in nodes for name in node.output if name}

    @cached_property
    def deferred(self) -> frozenset[int]:
        """Numbers of the nodes whose values are not known before a run."""
        return frozenset(self.makers[name] for name in self.names.intersection(self.makers))

    def operands(self, number: int) -> set[int]:
        """Numbers of the nodes that a node reads."""
        read = (self.makers.get(name) for name in read_names(self.nodes[number]))
        return {maker for maker in read if maker is not None}

    def with_ancestors(self, numbers: Iterable[int]) -> set[int]:
        """The nodes and all that they are computed from."""
        waiting, ancestors = list(numbers), set[int]()
        while waiting:
            number = waiting.pop()
            if number not in ancestors:
                ancestors.add(number)
                waiting.extend(self.operands(number))
        return ancestors

    @cached_property
    def first(self) -> frozenset[int]:
        """Numbers of the deferred nodes that decide shapes, of those that read what no array holds,
        and of the deferred ones before them."""
        prefix = {n for n in self.deferred if not self.operands(n) & self.deferred}
        # A fixed point: a node that joins may compute values of other types, whose readers join
        # then.  Ancestors join, too, so that no value goes back from the suffix to the prefix.
        while True:
            foreign = {n for n in self.deferred if self.reads_foreign(n, prefix)}
            wider = self.with_ancestors(prefix | foreign) & self.deferred
            if wider == prefix:
                return frozenset(prefix)
            prefix = wider

    def reads_foreign(self, number: int, first: set[int]) -> bool:
        """Whether a node reads a value of some nodes that is not a tensor of our types."""
        read = (name for name in read_names(self.nodes[number]) if self.makers.get(name) in first)
        return any(name in self.names and name not in self.tensors for name in read)

    @cached_property
    def tensors(self) -> dict[str, onnx.ValueInfoProto]:
        """Values that are tensors of types that the graph holds, with what is known of their
        shapes."""
        try:
            graph = infer(self.tail, data_prop=True).graph
        except INFERENCE_FAILURES:
            return {}
        infos = chain(graph.input, graph.value_info, graph.output)
        return {info.name: info for info in infos if _is_tensor(info)}

    def parts(self) -> Behind | None:
        """The two models."""
        suffix, loop = self.deferred - self.first, self.loop
        nodes = [self.nodes[number] for number in suffix]
        if loop is None and not any(node.op_type in HEAVY for node in all_nodes(nodes)):
            return None
        border = self.border(suffix)
        if not all(name in self.tensors for name in border):
            return None
        computed = {name for number in self.first for name in self.nodes[number].output}
        early = [output for output in self.graph.output if output.name in computed]
        suffix_outputs = [output for output in self.graph.output if output.name not in computed]
        listed = {output.name for output in early}
        between = [self.tensors[name] for name in border]
        ends = [*early, *(info for info in between if info.name not in listed)]
        return Behind(
            self.model(self.first, self.graph.input, ends),
            self.model(suffix, [*self.graph.input, *map(_free_shape, between)], suffix_outputs),
            loop,
        )

    @cached_property
    def loop(self) -> LateLoop | None:
        """The Loop that alone comes before all other deferred nodes, if its body is a model."""
        prefix = [self.nodes[number] for number in self.first]
        if len(prefix) != 1:
            return None
        (node,) = prefix
        if node.op_type != "Loop" or node.domain not in ("", "ai.onnx"):
            return None
        infos = {info.name: info for info in self.graph.input}
        early = (n for n in range(len(self.nodes)) if n not in self.deferred)
        makers = {str(name): self.nodes[n] for n in early for name in self.nodes[n].output if name}
        return LoopNode(self.tail, node, infos, makers).apart()

    def border(self, suffix: frozenset[int]) -> list[str]:
        """Values of the first part that the other one reads."""
        read = {name for number in suffix for name in read_names(self.nodes[number])}
        results = (name for number in sorted(self.first) for name in self.nodes[number].output)
        return [name for name in results if name in read]

    def model(
        self,
        numbers: Iterable[int],
        inputs: Iterable[onnx.ValueInfoProto],
        outputs: Iterable[onnx.ValueInfoProto],
    ) -> onnx.ModelProto:
        """A model of some nodes, the known values that they read, and those inputs."""
        chosen = set(numbers)
        constants = self.known_makers(chosen)
        model = onnx.ModelProto()
        model.CopyFrom(self.tail)
        for field in ("node", "input", "output", "initializer"):
            model.graph.ClearField(field)
        model.graph.node.extend(self.nodes[number] for number in sorted(chosen | constants))
        model.graph.output.extend(outputs)
        read = {name for node in model.graph.node for name in read_names(node)}
        read |= {output.name for output in model.graph.output}
        model.graph.input.extend(info for info in inputs if info.name in read)
        tensors = self.graph.initializer
        model.graph.initializer.extend(tensor for tensor in tensors if tensor.name in read)
        return model

    def known_makers(self, numbers: set[int]) -> set[int]:
        """Numbers of the nodes of known values that some nodes are computed from."""
        ancestors: set[int] = set()
        waiting = list(numbers)
        while waiting:
            new = self.operands(waiting.pop()) - self.deferred - ancestors
            ancestors |= new
            waiting.extend(new)
        return ancestors


def _is_tensor(info: onnx.ValueInfoProto) -> bool:
    """Whether a value is a tensor of a type that the graph holds."""
    kind = info.type.tensor_type
    return info.type.HasField("tensor_type") and graph_dtype(kind.elem_type) is not None


def _free_shape(info: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    """The declaration without names of sizes: two that are called alike need not be equal."""
    copy = onnx.ValueInfoProto()
    copy.CopyFrom(info)
    for dim in copy.type.tensor_type.shape.dim:
        dim.ClearField("dim_param")
    return copy

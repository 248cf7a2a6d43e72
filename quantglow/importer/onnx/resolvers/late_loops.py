"""A Loop whose body becomes a model of its own.

The number of trips may be computed, values may grow from trip to trip, and a condition may end the
loop: the model of the body has free dimensions, and runs once a trip.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper, numpy_helper

from quantglow.importer.onnx.nodes.values import OTHER_FLOATS, graph_dtype
from quantglow.importer.onnx.operators.controlflow.subgraphs import copied_names, original
from quantglow.importer.onnx.reading.proto import all_nodes
from quantglow.importer.onnx.resolvers.external import captured_names, read_names
from quantglow.ir.graph.node import Constant
from quantglow.ir.ops.external import External
from quantglow.ir.ops.loop import Carry, Kind, Trips
from quantglow.support.classes import cached_property
from quantglow.support.errors import UnsupportedOpError

LOOP = "Loop"

Shapes = Mapping[str, tuple[int, ...]]
"""Shapes of the inputs of a body, by name."""


@dataclass(frozen=True)
class LateLoop:
    """A Loop.

    names     of its operands and results, and of the ends of its body
    operands  ONNX model of those operands that are no inputs of its node
    body      ONNX model of a trip
    declared  sizes that the model gives inputs of the body: by name and axis
    """

    names: Trips
    operands: onnx.ModelProto
    body: onnx.ModelProto
    declared: Mapping[tuple[str, int], int]

    def body_for(self, trips: Sequence[Shapes]) -> onnx.ModelProto:
        """The model of a trip, given the shapes of its inputs in some trips.

        Sizes that the model declares are fixed.  Sizes that grow alike share a symbol.  Raises
        ``UnsupportedOpError`` for trips whose inputs differ in rank.
        """
        model = onnx.ModelProto()
        model.CopyFrom(self.body)
        symbols: dict[tuple[int, ...], str] = {}
        for info in model.graph.input:
            dims = info.type.tensor_type.shape
            dims.ClearField("dim")
            shapes = [trip[info.name] for trip in trips]
            if len(set(map(len, shapes))) > 1:
                raise UnsupportedOpError([f"{info.name!r} has other ranks in other trips"])
            for axis, sizes in enumerate(zip(*shapes, strict=True)):
                fixed = self.declared.get((info.name, axis))
                if len(set(sizes)) > 1:
                    name = symbols.setdefault(sizes, f"rows{len(symbols)}")
                    dims.dim.add().dim_param = name
                elif fixed == sizes[0]:
                    dims.dim.add().dim_value = sizes[0]
                else:
                    dims.dim.add()
        return model


def loop_name(node: External) -> str:
    """The name of the loop whose result a node is: that of the first result that the Loop has,
    whether anything reads it."""
    (loop,) = onnx.ModelProto.FromString(node.model).graph.node
    return str(next(filter(None, loop.output)))


@dataclass(frozen=True)
class ExternalLoop:
    """The loop of External nodes that are results of one Loop.

    name      see ``loop_name``
    model     ONNX model of the whole loop, equal for equal loops
    late      the loop
    operands  names of the operands of the nodes, by those of the inputs of ``model``
    results   names of the outputs of ``model``, by the numbers of the nodes' outputs
    """

    name: str
    model: bytes
    late: LateLoop
    operands: Mapping[str, str]
    results: tuple[str, ...]

    @staticmethod
    def of(node: External) -> ExternalLoop | None:
        """The loop whose result a node is; None for other operators, and for a body that is no
        model of its own."""
        if node.op_type != LOOP:
            return None
        model = onnx.ModelProto.FromString(node.model)
        inputs, args = list(model.graph.input), {}
        del model.graph.input[:]
        for info, arg in zip(inputs, node.args, strict=True):
            if isinstance(arg, Constant):  # weights of the body, which are not to be fed to it
                model.graph.initializer.append(numpy_helper.from_array(arg.value, info.name))
            else:
                model.graph.input.append(info)
                args[str(info.name)] = arg.name
        (loop,), results = model.graph.node, tuple(str(o.name) for o in model.graph.output)
        # Sizes of results differ from graph to graph, where the loop is the same.
        for output in model.graph.output:
            output.CopyFrom(_free_shape(output))
        loop.output[:] = [name if name in results else "" for name in loop.output]
        infos = {info.name: info for info in model.graph.input}
        late = LoopNode(model, loop, infos, {}).apart()
        if late is None:
            return None
        content = model.SerializeToString(deterministic=True)
        return ExternalLoop(loop_name(node), content, late, args, results)


@dataclass(frozen=True, eq=False)
class LoopNode:
    """A Loop of a model, and the values that are given to it: ``infos`` are types of values,
    ``makers`` the nodes of known values by the names of their results."""

    model: onnx.ModelProto
    node: onnx.NodeProto
    infos: Mapping[str, onnx.ValueInfoProto]
    makers: Mapping[str, onnx.NodeProto]

    def apart(self) -> LateLoop | None:
        """The loop with its body as a model; None where that holds other values than tensors of our
        types, or names that are not unique."""
        if not self.is_simple:
            return None
        constants, ends = list(self.known_makers(self.captured)), self.ends
        read = dict.fromkeys([*self.captured, *(n for x in constants for n in read_names(x))])
        captured = [name for name in read if name in self.infos]
        inputs = [*self.read_inputs, *(self.infos[name] for name in captured)]
        copies = [helper.make_node("Identity", [x], [y]) for x, y in ends.values() if x != y]
        outputs = [self.typed(position) for position in ends]
        body = self.part([*constants, *self.body.node, *copies], map(_free_shape, inputs), outputs)
        body.graph.initializer.extend(self.body.initializer)
        if self.holding in self.read:
            body.graph.initializer.append(self.true)
        return LateLoop(self.names(captured), self.operands, body, self.declared(inputs))

    @property
    def body(self) -> onnx.GraphProto:
        """The graph of a trip."""
        graph: onnx.GraphProto = next(a.g for a in self.node.attribute if a.name == "body")
        return graph

    @property
    def is_simple(self) -> bool:
        """Whether a model of its own can hold the body."""
        inner = {name for node in self.body.node for name in node.output}
        inner |= {info.name for info in self.body.input}
        inner |= {tensor.name for tensor in self.body.initializer}
        outer = {*self.captured, *_names_made(self.known_makers(self.captured))}
        ends = (*self.body.input, *self.body.output)
        read = (self.infos[name] for name in self.captured if name in self.infos)
        return (
            len(self.body.input) == len(self.node.input) >= 2
            and inner.isdisjoint(outer)
            and all(self.is_known(name) or name in self.infos for name in self.captured)
            and all(map(_is_plain, (*ends, *read)))
        )

    @cached_property
    def captured(self) -> list[str]:
        """Names that the body reads from outside."""
        return list(dict.fromkeys(filter(None, captured_names(self.body))))

    @cached_property
    def initializers(self) -> dict[str, onnx.TensorProto]:
        """The weights of the model around the loop."""
        return {tensor.name: tensor for tensor in self.model.graph.initializer}

    def is_known(self, name: str) -> bool:
        """Whether a value from outside is a weight, or computed from nothing else."""
        return name in self.initializers or name in self.makers

    def known_makers(self, names: Iterable[str]) -> Iterator[onnx.NodeProto]:
        """The nodes that compute known values, each behind those that it reads."""
        ordered: dict[int, onnx.NodeProto] = {}
        waiting = [(name, False) for name in names]
        while waiting:
            name, is_ready = waiting.pop()
            node = self.makers.get(name)
            if node is None or id(node) in ordered:
                continue
            if is_ready:
                ordered[id(node)] = node
            else:
                waiting.append((name, True))
                waiting += [(read, False) for read in read_names(node)]
        yield from ordered.values()

    @cached_property
    def copies(self) -> dict[str, str]:
        return copied_names(self.body)

    @property
    def holding(self) -> str:
        """The name of the condition in the body: true in each trip that runs."""
        return str(self.body.input[1].name)

    @property
    def true(self) -> onnx.TensorProto:
        dims = [d.dim_value or 1 for d in self.body.input[1].type.tensor_type.shape.dim]
        return numpy_helper.from_array(np.ones(dims, bool), self.holding)

    @cached_property
    def read(self) -> set[str]:
        """Names that the nodes of the body read, or that are copied to its outputs."""
        names = {name for node in self.body.node for name in read_names(node)}
        return names | {name for name, end in self.ends.values() if name != end}

    @property
    def read_inputs(self) -> list[onnx.ValueInfoProto]:
        """The inputs of the body that it reads, but for the condition."""
        return [i for i in self.body.input if i.name in self.read and i.name != self.holding]

    @property
    def is_endless(self) -> bool:
        """Whether the condition behind a trip always holds."""
        name = original(str(self.body.output[0].name), self.copies)
        if name == self.holding:
            return True
        initializers = {x.name: x for x in (*self.model.graph.initializer, *self.body.initializer)}
        tensors = [initializers[name]] if name in initializers else []
        for node in (*self.body.node, *self.makers.values()):
            if name in node.output and node.op_type == "Constant":
                tensors += [a.t for a in node.attribute if a.name == "value"]
        return bool(tensors) and bool(numpy_helper.to_array(tensors[0]).all())

    def stays(self, number: int) -> bool:
        """Whether a carried value is the same in all trips."""
        end = original(str(self.body.output[1 + number].name), self.copies)
        return bool(end == self.body.input[2 + number].name)

    @property
    def count(self) -> int:
        """The number of carried values."""
        return len(self.node.input) - 2

    @cached_property
    def ends(self) -> dict[int, tuple[str, str]]:
        """The outputs of the model of the body, by their positions in the body: what they are
        called there, and their names, which differ."""
        computed = {name for node in self.body.node for name in node.output}
        positions = [] if self.is_endless else [0]
        positions += [1 + n for n in range(self.count) if not self.stays(n)]
        positions += range(1 + self.count, len(self.body.output))
        outputs: dict[int, tuple[str, str]] = {}
        for position in positions:
            name = str(self.body.output[position].name)
            is_new = name in computed and (name, name) not in outputs.values()
            outputs[position] = name, name if is_new else f"{name}:copy{position}"
        return outputs

    def typed(self, position: int) -> onnx.ValueInfoProto:
        """The declaration of an output, without a shape."""
        element = self.body.output[position].type.tensor_type.elem_type
        name = self.ends[position][1]
        info: onnx.ValueInfoProto = helper.make_tensor_value_info(name, element, None)
        return info

    def names(self, captured: Sequence[str]) -> Trips:
        """The names of all values."""
        node, number = self.node, self.body.input[0]
        dims = tuple(d.dim_value or 1 for d in number.type.tensor_type.shape.dim)
        return Trips(
            str(node.input[0]),
            str(node.input[1]),
            str(number.name) if number.name in self.read else "",
            dims,
            self.end(0),
            tuple(map(self.carry, range(self.count))),
            tuple(self.end(n) for n in range(1 + self.count, len(self.body.output))),
            tuple(captured),
            tuple(self.results),
        )

    def end(self, position: int) -> str:
        """The name of an output of the model of the body, "" if it has no such."""
        return self.ends.get(position, ("", ""))[1]

    def carry(self, number: int) -> Carry:
        """A carried value."""
        inner = str(self.body.input[2 + number].name)
        read = inner if inner in self.read else ""
        return Carry(str(self.node.input[2 + number]), read, self.end(1 + number))

    @property
    def results(self) -> Iterator[tuple[str, Kind, int]]:
        for number, name in enumerate(self.node.output):
            if name and number < self.count:
                yield str(name), "carried", number
            elif name:
                yield str(name), "stacked", number - self.count

    @property
    def operands(self) -> onnx.ModelProto:
        """The model of the operands that are known."""
        names = dict.fromkeys(filter(None, self.node.input))
        constants = [name for name in names if self.is_known(name)]
        nodes = list(self.known_makers(constants))
        read = {name for node in nodes for name in read_names(node)}
        inputs = [info for name, info in self.infos.items() if name in read]
        copies = [helper.make_node("Identity", [n], [f"{n}:given"]) for n in constants]
        outputs = [onnx.ValueInfoProto(name=f"{name}:given") for name in constants]
        return self.part([*nodes, *copies], inputs, outputs)

    def part(
        self,
        nodes: Collection[onnx.NodeProto],
        inputs: Iterable[onnx.ValueInfoProto],
        outputs: Iterable[onnx.ValueInfoProto],
    ) -> onnx.ModelProto:
        """A model of some nodes with the weights that they read."""
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        for field in ("node", "input", "output", "initializer", "value_info"):
            model.graph.ClearField(field)
        model.graph.node.extend(nodes)
        model.graph.output.extend(outputs)
        read = {name for node in nodes for name in read_names(node)}
        model.graph.input.extend(info for info in inputs if info.name in read)
        model.graph.initializer.extend(t for name, t in self.initializers.items() if name in read)
        return model

    def declared(self, inputs: Iterable[onnx.ValueInfoProto]) -> dict[tuple[str, int], int]:
        """The sizes that inputs of the body are declared with, or operands of the loop."""
        sizes: dict[tuple[str, int], int] = {}
        operands = dict(zip((i.name for i in self.body.input), self.node.input, strict=False))
        for info in inputs:
            outer = self.infos.get(operands.get(info.name, ""))
            for declaration in filter(None, (outer, info)):
                for axis, dim in enumerate(declaration.type.tensor_type.shape.dim):
                    if dim.dim_value:
                        sizes[info.name, axis] = dim.dim_value
        return sizes


def _names_made(nodes: Iterable[onnx.NodeProto]) -> Iterator[str]:
    """The names of values that nodes make, at any depth."""
    for node in all_nodes(nodes):
        yield from node.output
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from (info.name for info in graph.input)
                yield from (tensor.name for tensor in graph.initializer)


def _is_plain(info: onnx.ValueInfoProto) -> bool:
    """Whether a value is a tensor that is computed in the type it has."""
    kind = info.type.tensor_type.elem_type
    is_tensor = info.type.HasField("tensor_type") and graph_dtype(kind) is not None
    return is_tensor and kind not in OTHER_FLOATS


def _free_shape(info: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    """The declaration of a value of any shape."""
    element = info.type.tensor_type.elem_type
    wide: onnx.ValueInfoProto = helper.make_tensor_value_info(info.name, element, None)
    return wide

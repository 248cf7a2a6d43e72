"""ONNX nodes to the nodes of a typed float graph.  ``source`` has the way in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx

from quantglow.importer.onnx.budget import Meter, describe
from quantglow.importer.onnx.domains import DOMAINS
from quantglow.importer.onnx.nodes.context import (
    IMPORTERS,
    AlreadyReported,
    Call,
    ImportScope,
    OfLateShapes,
    Result,
    Unsupported,
    qualify,
)
from quantglow.importer.onnx.nodes.folding import FAILURES, fold, foldable, infer_types
from quantglow.importer.onnx.nodes.values import (
    Foreign,
    IntegerValue,
    KnownSizes,
    KnownValue,
    ObjectValue,
    Value,
    as_element,
    element_in_words,
    graph_dtype,
    held_dtype,
    is_float_type,
    tensor_array,
    value_onnx_type,
    value_shape,
)
from quantglow.importer.onnx.operators.controlflow.loops import import_loop, import_scan
from quantglow.importer.onnx.operators.controlflow.subgraphs import import_if
from quantglow.importer.onnx.operators.quantization import linear
from quantglow.importer.onnx.operators.quantization.qlinear import (
    CONCAT,
    FLOAT_PRODUCTS,
    FORMS,
    import_float_product,
    import_qlinear,
    is_of_steps,
)
from quantglow.importer.onnx.operators.tensor.shape import MAX_ELEMENTS
from quantglow.importer.onnx.reading.light_models import Weights
from quantglow.importer.onnx.reading.proto import OLDEST_OPSET, all_nodes, opset_versions
from quantglow.importer.onnx.resolvers.evaluation import (
    FLOAT,
    evaluate_node,
    find_importer,
    is_ours,
    known_value,
    with_free_sizes,
)
from quantglow.importer.onnx.resolvers.expansion import DEFINITIONS, definition, expand
from quantglow.importer.onnx.resolvers.external import (
    left_to_fallback,
    object_value,
    read_names,
    value_info,
)
from quantglow.importer.onnx.resolvers.sequences import by_items
from quantglow.ir.graph.family import LateResults, Values
from quantglow.ir.graph.node import Constant, Input, Node
from quantglow.ir.symbolic.size import Dim, Shape, decide, decide_in, is_free, likely, prod
from quantglow.ir.types import TensorType
from quantglow.support.errors import ModelError, TypeRuleError

Resolve = Callable[[onnx.NodeProto, ImportScope], dict[str, Value]]
"""Imports another node, such as the one whose result is moved."""

Resolver = Callable[[onnx.NodeProto, ImportScope, Resolve], dict[str, Value] | None]
"""The values of a node's outputs; None if this is not the way to make them."""


def new_scope(proto: onnx.ModelProto, meter: Meter, fallback: bool = False) -> ImportScope:
    """The names of the main graph reserved."""
    graph = proto.graph
    nodes = list(all_nodes(graph.node))
    read = {name for node in nodes for name in node.input}
    computed = {name for node in graph.node for name in node.output}
    return ImportScope(
        opsets={"": OLDEST_OPSET, **opset_versions(proto)},
        meter=meter,
        reserved=frozenset({*computed, *(i.name for i in graph.input)}),
        used=frozenset(read | _outputs_of_graphs(graph, nodes)),
        fallback=fallback,
        has_free_inputs=any(map(_is_open, graph.input)),
        declared={info.name: info for info in (*graph.value_info, *graph.output)},
    )


def _is_open(value: onnx.ValueInfoProto) -> bool:
    """Whether a declaration leaves a dimension free."""
    return any(not d.HasField("dim_value") for d in value.type.tensor_type.shape.dim)


def _outputs_of_graphs(graph: onnx.GraphProto, nodes: Iterable[onnx.NodeProto]) -> set[str]:
    branches = [a.g for node in nodes for a in node.attribute if a.HasField("g")]
    return {output.name for g in (graph, *branches) for output in g.output}


def known_initializers(graph: onnx.GraphProto, weights: Weights) -> Iterator[KnownValue]:
    """The initializers decoded, but for ``weights``.  Raises ``ModelError``."""
    for tensor in graph.initializer:
        array = weights.get(tensor.name)
        yield KnownValue(tensor.name, tensor_array(tensor) if array is None else array)


def declare_inputs(
    fed: Iterable[onnx.ValueInfoProto],
    shapes: Mapping[str, Shape],
    scope: ImportScope,
    values: Values,
) -> tuple[Input, ...]:
    """Input nodes in these shapes; those with values and those without elements, such as a cache
    before the first token, are known, and no other node reads them.

    Raises ``ModelError`` for those that nobody can hold.
    """
    inputs = []
    for value in fed:
        dims, element = shapes[value.name], value.type.tensor_type.elem_type
        if decide(prod(dims) > MAX_ELEMENTS):
            raise ModelError(
                f"input {value.name!r} of shape {tuple(dims)} has more than {MAX_ELEMENTS} "
                "elements. Remedy: export the model again, or give smaller input_shapes."
            )
        if (dtype := held_dtype(element)) is not None:
            node = Input(name=scope.claim(value.name), tensor=TensorType(dtype, tuple(dims)))
            scope.values[value.name] = _input_value(node, values.get(value.name))
            inputs.append(node)
        else:
            scope.values[value.name] = Foreign(element, dims, reported=False)
    return tuple(inputs)


def _input_value(node: Input, elements: Sequence[int] | None) -> Value:
    """The value that the name of an input stands for."""
    if node.type.dtype.is_object:
        return ObjectValue(node, value_info(node.name, node.type).type)
    return _known_input(node, elements) or node


def _known_input(node: Input, elements: Sequence[int] | None) -> KnownValue | None:
    """The value of an input if it is known."""
    if decide_in(0, node.type.shape):
        return KnownValue(node.name, np.zeros(node.type.fixed_shape, node.type.dtype.numpy))
    return None if elements is None else evaluate(node, elements)


def evaluate(node: Input, elements: Sequence[int]) -> KnownValue:
    """An input with these values.  Raises ``ModelError`` where they do not fit it."""
    kind = node.type
    fits = not kind.dtype.is_float and decide(len(elements) == kind.size)
    try:
        array = np.asarray(elements, kind.dtype.numpy) if fits else None
    except (OverflowError, TypeError, ValueError):
        array = None
    if array is None:
        raise ModelError(
            f"input_values[{node.name!r}] is {elements}, but the input is {kind}. "
            "Remedy: give all its elements, in order; only integers and conditions have values."
        )
    return KnownValue(node.name, array.reshape(kind.shape))


def live_nodes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """The nodes some output needs, in order."""
    needed = {output.name for output in graph.output}
    live = []
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            live.append(node)
            needed.update(name for inner in all_nodes([node]) for name in inner.input)
    return live[::-1]


def import_nodes(nodes: Iterable[onnx.NodeProto], scope: ImportScope) -> None:
    """Bind the outputs of all nodes; a refused node leaves its reason and placeholders."""
    for proto in nodes:
        scope.meter.enter(proto)
        if proto.domain == "ai.onnx":
            proto = _standard(proto)
        with scope.importing(proto):
            scope.values.update(_import_or_refuse(proto, scope))


def _import_or_refuse(proto: onnx.NodeProto, scope: ImportScope) -> dict[str, Value]:
    """The values of the node's outputs, or stand-ins for them.  Raises ``ModelError``."""
    missed = len(scope.missed)
    try:
        results = _import_node(proto, scope)
        del scope.missed[missed:]  # the importer found another way
        return results
    except Unsupported as reason:
        return refuse(proto, scope, reason)
    except AlreadyReported:
        return placeholders(proto, scope)
    except (TypeRuleError, *FAILURES) as error:
        if not scope.problems:
            raise ModelError(f"{describe(proto)}: is malformed: {error}") from error
        return placeholders(proto, scope)


def import_body(graph: onnx.GraphProto, scope: ImportScope) -> None:
    """Bind the values of a subgraph."""
    scope.values.update((value.name, value) for value in known_initializers(graph, {}))
    import_nodes(live_nodes(graph), scope)


def refuse(proto: onnx.NodeProto, scope: ImportScope, reason: Unsupported) -> dict[str, Value]:
    """Stand-ins for a node that cannot be compiled: External nodes, or a problem of the model."""
    if scope.is_late and (empty := _empty_results(proto, scope)):
        return empty
    is_refused = scope.late_results is LateResults.REFUSED and isinstance(reason, OfLateShapes)
    if scope.fallback and not is_refused:
        scope.claimed.difference_update(proto.output)  # by the importer, before it gave up
        results = left_to_fallback(proto, scope, str(reason))
        if results is not None:
            return results
    scope.problems.append(f"{describe(proto)}: {reason}")
    return placeholders(proto, scope)


def _empty_results(proto: onnx.NodeProto, scope: ImportScope) -> dict[str, Value]:
    """The results of a node, which are known where none of them has elements; else nothing."""
    inferred = _infer_at_hints(proto, scope)
    values: dict[str, Value] = {}
    for name in filter(scope.used.__contains__, proto.output):
        element, dims = inferred.get(name, (onnx.TensorProto.UNDEFINED, None))
        if graph_dtype(element) is None or dims is None or 0 not in dims:
            return {}
        zeros = np.zeros(dims, onnx.helper.tensor_dtype_to_np_dtype(element))
        values[name] = KnownValue(name, zeros)
    return values


def _infer_at_hints(
    proto: onnx.NodeProto, scope: ImportScope
) -> dict[str, tuple[int, tuple[int, ...] | None]]:
    """The types of results at the hints, so that operands that do not fit each other are refused.

    ONNX's inference crashes in bodies that capture a value whose type it does not have.
    """
    names = (name for name in read_names(proto) if name in scope.values)
    return infer_types(proto, {n: _at_hints(scope.values[n]) for n in names}, scope.opsets)


def _at_hints(value: Value) -> Value:
    """The value, without elements where its sizes are free; floats have the graph's type."""
    shape = value_shape(value)
    if isinstance(value, KnownValue) and is_float_type(value.onnx_type):
        return KnownValue(value.name, as_element(value.array))
    if isinstance(value, KnownValue) or shape is None or not any(map(is_free, shape)):
        return value
    return Foreign(value_onnx_type(value), tuple(map(likely, shape)), reported=False)


def _standard(proto: onnx.NodeProto) -> onnx.NodeProto:
    """The node under the short name of the standard domain."""
    copy = onnx.NodeProto()
    copy.CopyFrom(proto)
    copy.domain = ""
    return copy


def _import_node(proto: onnx.NodeProto, scope: ImportScope) -> dict[str, Value]:
    """The values of the node's outputs, by the first resolver that knows how to make them.

    Raises ``Unsupported`` with the importer's reason.
    """
    if proto.domain not in DOMAINS:
        raise Unsupported(f"quantglow does not know the domain {proto.domain!r}")
    tried = (resolver(proto, scope, _import_node) for resolver in RESOLVERS)
    return next(values for values in tried if values is not None)


def _with_moved_layout(
    proto: onnx.NodeProto, scope: ImportScope, resolve: Resolve
) -> dict[str, Value] | None:
    """Known integers that are moved, not computed: their layout is noted."""
    layout = linear.lay_out(proto, _resolve_operands(proto, scope), scope)
    return None if layout is None else {layout.name: layout}


def _with_opaque_operands(
    proto: onnx.NodeProto, scope: ImportScope, resolve: Resolve
) -> dict[str, Value] | None:
    """A node that reads a tensor whose shape is known when the model runs."""
    read = ((name, scope.values.get(name)) for name in read_names(proto))
    late = [(n, v) for n, v in read if isinstance(v, ObjectValue) and v.is_late]
    if not late:
        return None
    (name, value), *_ = late
    reason = f"the shape of {name!r} is known when the model runs"
    if graph_dtype(value.onnx_type) is None:
        reason = f"no graph holds {name!r}: it is {element_in_words(value)}"
    results = left_to_fallback(proto, scope, reason)
    if results is None:
        raise Unsupported(reason)
    return results


def _as_it_is(
    proto: onnx.NodeProto, scope: ImportScope, resolve: Resolve
) -> dict[str, Value] | None:
    """A node whose definition by other nodes, or whose value, holds for some sizes only."""
    if not scope.is_atomic(proto):
        return None
    operands = _resolve_operands(proto, scope).values()
    if all(isinstance(v, KnownValue) and not isinstance(v, KnownSizes) for v in operands):
        return None
    return left_to_fallback(proto, scope, "its definition holds for some sizes only")


def _with_known_operands(
    proto: onnx.NodeProto, scope: ImportScope, resolve: Resolve
) -> dict[str, Value] | None:
    """A node whose operands are all known, evaluated."""
    kind, operands = qualify(proto), _resolve_operands(proto, scope)
    if kind in linear.ON_INTEGERS or not foldable(proto, operands, scope.opset):
        return None
    try:
        if is_ours(proto, operands, scope.opsets):
            return evaluate_node(proto, operands, scope, bind)
        if (results := _by_float_definition(proto, operands, scope)) is not None:
            return results
        folded = fold(proto, operands, scope.opsets, scope.meter)
        return {value.name: value for value in folded}
    except Unsupported:
        if kind in IMPORTERS or kind in DEFINITIONS or is_of_steps(kind):
            return None
        raise


def _by_float_definition(
    proto: onnx.NodeProto, operands: Mapping[str, Value], scope: ImportScope
) -> dict[str, Value] | None:
    """A node of floats without an importer, by its definition, as at run time: ``onnx.reference``
    takes the logarithm of a Softmax that is 0.  None where the definition has loops."""
    floats = [v for v in operands.values() if isinstance(v, KnownValue) and v.onnx_type == FLOAT]
    if qualify(proto) in IMPORTERS or not floats:
        return None
    function = definition(proto, scope)
    if function is None or any(a.HasField("g") for n in function.node for a in n.attribute):
        return None
    try:
        return expand(proto, scope, import_nodes)
    except Unsupported:
        return None


def _by_bodies(
    proto: onnx.NodeProto, scope: ImportScope, resolve: Resolve
) -> dict[str, Value] | None:
    """An If or a loop, whose subgraphs are imported, too."""
    importer = WITH_BODIES.get(qualify(proto))
    return None if importer is None else importer(Call(proto, scope), import_body)


WITH_BODIES = {"If": import_if, "Loop": import_loop, "Scan": import_scan}
"""Importers of operators with subgraphs."""


def _by_importer(proto: onnx.NodeProto, scope: ImportScope, resolve: Resolve) -> dict[str, Value]:
    """A node by the importer of its type; without one, by the standard's definition of it."""
    try:
        result = find_importer(proto)(Call(proto, scope))
        return bind(proto, result if isinstance(result, Sequence) else [result], scope)
    except Unsupported:
        scope.claimed.difference_update(proto.output)
        if (results := expand(proto, scope, import_nodes)) is None:
            raise
        return results


RESOLVERS: tuple[Resolver, ...] = (
    _with_opaque_operands,
    _as_it_is,
    by_items,
    with_free_sizes,
    _with_moved_layout,
    _with_known_operands,
    linear.import_moved,
    linear.import_index,
    import_qlinear,
    import_float_product,
    _by_bodies,
    _by_importer,
)
"""Ways to import a node, asked in this order; None: the next one is asked."""


def knows_operator(op_type: str) -> bool:
    """Whether ONNX or onnxruntime has an operator of this type, whatever its domain."""
    ours = (*IMPORTERS, *DEFINITIONS, *FORMS, *FLOAT_PRODUCTS, CONCAT)
    return any(kind.rpartition(".")[2] == op_type for kind in ours) or any(
        schema.name == op_type for schema in onnx.defs.get_all_schemas()
    )


def _resolve_operands(proto: onnx.NodeProto, scope: ImportScope) -> dict[str, Value]:
    """The values of the node's inputs by name."""
    return {name: scope.values[name] for name in proto.input if name}


def _is_holdable(size: Dim) -> bool:
    """Whether a value has elements, and no more than anybody can hold."""
    return decide(size > 0) and decide(size <= MAX_ELEMENTS)


def bind(proto: onnx.NodeProto, results: Sequence[Result], scope: ImportScope) -> dict[str, Value]:
    """Results by output name.  Refuses outputs nobody made, and sizes nobody can hold."""
    if missing := [n for n in proto.output[len(results) :] if n in scope.used]:
        raise Unsupported(f"its outputs {missing} are not supported")
    values: dict[str, Value] = {}
    for name, result in zip(proto.output, results, strict=False):
        value = known_value(name, result) if isinstance(result, np.ndarray) else result
        if isinstance(value, KnownValue):
            scope.meter.count(name, value.shape, value.array.itemsize)
        shape = value_shape(value)
        if not isinstance(value, KnownValue) and shape and not _is_holdable(prod(shape)):
            raise Unsupported(f"{name!r} would have shape {shape}")
        values[name] = value
    return values


def placeholders(proto: onnx.NodeProto, scope: ImportScope) -> dict[str, Value]:
    """Stand-ins for the outputs of a refused node, so that the nodes behind it are checked too."""
    inferred = _infer_at_hints(proto, scope)
    values: dict[str, Value] = {}
    for name in filter(None, proto.output):
        element, dims = inferred.get(name, (onnx.TensorProto.UNDEFINED, None))
        dtype = graph_dtype(element)
        if dtype is not None and dims is not None:
            values[name] = Input(name=scope.claim(name), tensor=TensorType(dtype, dims))
        else:
            values[name] = Foreign(element, dims, reported=True)
    scope.placeholders.update(values.values())
    return values


def _as_declared(name: str, value: ObjectValue, scope: ImportScope) -> ObjectValue:
    """The value of an output; of a late float in the type that the model declares."""
    declared = scope.declared[name].type.tensor_type.elem_type if value.is_late else 0
    if not is_float_type(value.onnx_type) or declared in (0, value.onnx_type):
        return value
    proto = onnx.helper.make_node("Cast", [name], [f"{name}:declared"], to=declared)
    inner = replace(scope, values={name: value}, used=scope.used | set(proto.output))
    results = left_to_fallback(proto, inner, "its operand is known when the model runs") or {}
    cast = results.get(proto.output[0])
    return cast if isinstance(cast, ObjectValue) else value


def output_node(name: str, scope: ImportScope) -> Node | None:
    """The node of a graph output, None (and a problem) if the graph cannot hold it."""
    value = scope.values[name]
    if isinstance(value, KnownValue) and graph_dtype(value.onnx_type) is None:
        tensor = onnx.numpy_helper.from_array(value.array)
        constant = onnx.helper.make_node("Constant", [], [name], value=tensor)
        values = (
            left_to_fallback(constant, scope, f"no graph holds {element_in_words(value)}") or {}
        )
        value = values.get(name, value)
    if isinstance(value, IntegerValue) and value.is_stored:
        return value.node
    if (held := object_value(value, scope)) is not None:
        return _as_declared(name, held, scope).node
    has_late = scope.late_results is not LateResults.REFUSED
    if has_late and isinstance(value, KnownValue) and 0 in value.shape:
        return Constant(name=scope.claim(name, derived=True), value=as_element(value.array))
    try:
        return scope.tensor(name)
    except Unsupported as reason:
        scope.problems.append(f"output {name!r}: {reason}")
    except AlreadyReported:
        pass
    return None

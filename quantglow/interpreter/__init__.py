"""The reference interpreter: runs any graph, float or int8, by each operator's ``reference``.

Its result is the meaning of the graph.  Listeners see every value; the profiler is one.
``executor`` has the loop over nodes, which every other run of a graph in NumPy shares, and shows
values inside of loops; ``branches`` finds the branches that an If does not take; ``stacks`` runs
several samples at once; ``program`` runs a planned program in one arena.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from quantglow.interpreter.executor import Execution, Watched
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input, Node
from quantglow.ir.graph.signature import Signature
from quantglow.ir.ops.external import External
from quantglow.ir.ops.loop import Loop
from quantglow.ir.types import DType, TensorType
from quantglow.support.arrays import Array
from quantglow.support.errors import InputError

Listener = Callable[[Node, Array], None]
"""Called with every node and its value, in the order of execution."""


NOTHING: Mapping[str, Array] = MappingProxyType({})


class RecordedFeeds(dict[str, Array]):
    """Feeds, and the ``results`` of nodes that decide sizes, by name.

    A run takes these in place of its own: its values have the sizes for which the graph was made,
    also where others choose, as rounded numbers may.
    """

    def __init__(self, feeds: Mapping[str, Any], results: Mapping[str, Array] = NOTHING) -> None:
        super().__init__(feeds)
        self.results = results


def results_in(feeds: Mapping[str, Array]) -> Mapping[str, Array]:
    """The results that feeds bring, by name of the node."""
    return feeds.results if isinstance(feeds, RecordedFeeds) else NOTHING


def recorded_result(node: Node, feeds: Mapping[str, Array]) -> Array | None:
    """The result of a node that feeds bring; None for other nodes and feeds."""
    return results_in(feeds).get(node.name) if isinstance(node, External) else None


def interpret(
    graph: Graph, feeds: Mapping[str, Array], listeners: Sequence[Listener] = ()
) -> list[Array]:
    """Outputs of the graph on ``feeds`` (input name -> array), in the order of its outputs.

    Listeners see every value; of the bodies of loops those that products with constant weights
    read, of all trips stacked (``executor``).

    Raises ``InputError`` when a feed is missing, unknown, or of another shape or dtype.
    """
    check_feeds(graph, feeds)
    outputs = [node for _, node in graph.outputs]
    watched = Watched(listeners)

    def evaluate(node: Node, operands: Sequence[Array]) -> Array:
        if listeners and isinstance(node, Loop):
            return watched.value(node, operands)
        return compute_value(node, operands, feeds)

    execution = Execution(graph, outputs, evaluate)
    for node, value in execution:
        for listener in listeners:
            listener(node, value)
    return execution.run()


def compute_value(node: Node, operands: Sequence[Array], feeds: Mapping[str, Array]) -> Array:
    """The value of one node from those of its operands; ``feeds`` has those of inputs, and may
    have recorded ones."""
    if isinstance(node, Input):
        return np.asarray(feeds[node.name])
    if isinstance(node, Constant):
        return node.value
    recorded = recorded_result(node, feeds)
    return node.evaluate(*operands) if recorded is None else recorded


def check_feeds(graph: Graph, feeds: Mapping[str, Array]) -> None:
    """Raise ``InputError`` unless ``feeds`` has exactly the graph's inputs, well typed."""
    check_names([node.name for node in graph.inputs], feeds)
    for node in graph.inputs:
        name, kind = node.name, node.type
        array = np.asarray(feeds[name])
        if array.shape != kind.fixed_shape or array.dtype != kind.dtype.numpy:
            raise InputError(
                f"input {name!r} must be {kind.dtype.numpy} of shape {kind.shape}, "
                f"got {array.dtype} of shape {array.shape}{_remedy(array, kind)}"
            )


def check_types(signature: Signature, feeds: Mapping[str, Array]) -> None:
    """Raise ``InputError`` unless ``feeds`` have the element types of a model's inputs."""
    for port in signature.inputs:
        actual, expected = feeds[port.name].dtype, port.dtype.numpy
        if actual != expected:
            remedy = _conversion(actual, port.dtype)
            raise InputError(f"input {port.name!r} must be {expected}, got {actual}{remedy}")


def check_names(expected: Iterable[str], feeds: Mapping[str, object]) -> None:
    """Raise ``InputError`` unless ``feeds`` has exactly these inputs."""
    names = set(expected)
    if names == feeds.keys():
        return
    if missing := sorted(names - feeds.keys()):
        inputs, fed = sorted(names), sorted(map(str, feeds))
        raise InputError(f"missing input(s) {missing}; the model takes {inputs}, got {fed}")
    if unknown := sorted(map(str, feeds.keys() - names)):
        raise InputError(f"unknown input(s) {unknown}; the model takes {sorted(names)}")


def _remedy(array: Array, kind: TensorType) -> str:
    shape = kind.fixed_shape
    if array.shape != shape and array.dtype.kind in NUMERIC_KINDS:
        if array.shape == shape[1:]:
            return f". Remedy: add the first axis, of size {shape[0]}"
        if shape and array.shape[1:] == shape[1:]:
            return f". Remedy: feed {shape[0]} at a time, or import the model at this batch"
        return ". Remedy: preprocess as for the model"
    return _conversion(array.dtype, kind.dtype)


NUMERIC_KINDS = "biufcV"
"""NumPy's kinds of types of numbers; V: bfloat16 and float8."""


def _conversion(actual: np.dtype[Any], expected: DType) -> str:
    """The remedy for elements of another type."""
    if expected is DType.STRING:
        return ". Remedy: give an array of strings"
    if actual.kind not in NUMERIC_KINDS:
        return ". Remedy: give an array of numbers"
    return f". Remedy: cast it with .astype(numpy.{expected.numpy})"

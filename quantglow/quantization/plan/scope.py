"""The scope: nodes that the user wants to keep in float."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import TypeVar

from quantglow.errors import IgnoredScopeError
from quantglow.graph.aliases import known_names
from quantglow.graph.graph import Graph
from quantglow.graph.node import OPS, Node
from quantglow.options import QuantizationConfig

Named = TypeVar("Named")

ONNX_OPS = {
    "GlobalAveragePool": ("AveragePool", "ReduceMean"),
    "GlobalMaxPool": ("MaxPool", "ReduceMax"),
    "Flatten": ("Reshape",),
    "Squeeze": ("Reshape",),
    "Unsqueeze": ("Reshape",),
    "Split": ("Slice",),
    "Upsample": ("Resize",),
    "BatchNormalization": ("BatchNormalization", "Mul", "Add"),
}
"""ONNX operator -> its names in the optimized graph."""


def excluded_nodes(graph: Graph, config: QuantizationConfig) -> dict[Node, str]:
    """Node that stays float because of ``config`` -> the reason.

    With a node of a given name the steps stay float in which its operator was imported, as those of
    an LSTM or a FusedConv.  Raises ``IgnoredScopeError`` for an entry that matches no node.
    """
    nodes, scope = graph.compute_nodes(), config.ignored_scope
    entries = [
        *((entry, "nodes_to_exclude", True) for entry in config.nodes_to_exclude or ()),
        *((entry, "ignored_scope", scope.validate) for entry in scope.names),
        *((f"re:{pattern}", "ignored_scope", scope.validate) for pattern in scope.patterns),
    ]
    found: dict[Node, str] = {}
    names, steps = (known_names(graph), steps_by_result(nodes)) if entries else ({}, {})
    for entry, option, validate in entries:
        matches = matching(entry, names, validate, option)
        for result in (entry, *graph.results.get(entry, ())):
            matches += steps.get(result, ())
        _add(found, matches, f"{option} {entry!r}")
    for entry in scope.types:
        matches = _of_type(entry, nodes, scope.validate)
        _add(found, matches, f"ignored_scope type {entry!r}")
    if config.op_types_to_quantize:
        wanted = {op for entry in config.op_types_to_quantize for op in known_ops(entry)}
        _add(found, [n for n in nodes if n.op not in wanted], "not in op_types_to_quantize")
    return found


def steps_by_result(nodes: Iterable[Node]) -> dict[str, list[Node]]:
    """Name of a value -> the helpers that were made with it, which are called ``value:tag``."""
    found: dict[str, list[Node]] = {}
    for node in nodes:
        for place, letter in enumerate(node.name):
            if letter == ":":
                found.setdefault(node.name[:place], []).append(node)
    return found


def known_ops(entry: str) -> tuple[str, ...]:
    """The operators an ONNX op type stands for.  Raises ``IgnoredScopeError``."""
    if entry in ONNX_OPS:
        return ONNX_OPS[entry]
    if entry in OPS:
        return (entry,)
    raise _unmatched(f"op type {entry!r}", entry, OPS.keys() | ONNX_OPS.keys())


def matching(
    entry: str,
    names: Mapping[str, Sequence[Named]],
    validate: bool = True,
    option: str = "ignored_scope",
) -> list[Named]:
    """Nodes whose name is the entry of ``option``, fits its glob, or starts with its ``re:``
    expression.

    Raises ``IgnoredScopeError`` where no name matches and ``validate`` is set.
    """
    if entry.startswith("re:"):
        try:
            expression = re.compile(entry[3:])
        except re.error as error:
            raise IgnoredScopeError(
                f"{option}: {entry[3:]!r} is not a regular expression: {error}"
            ) from None
        matches = [nodes for name, nodes in names.items() if expression.match(name)]
    elif entry in names:
        matches = [names[entry]]
    else:
        matches = [nodes for name, nodes in names.items() if fnmatchcase(name, entry)]
    if not matches and validate:
        raise _unmatched(f"{option}: entry {entry!r}", entry.removeprefix("re:"), names.keys())
    return [node for nodes in matches for node in nodes]


def _of_type(entry: str, nodes: Iterable[Node], validate: bool) -> list[Node]:
    nodes = list(nodes)
    try:
        ops = known_ops(entry)
    except IgnoredScopeError:
        if validate:
            raise
        return []
    matches = [n for n in nodes if n.op in ops]
    if not matches and validate:
        raise _unmatched(f"op type {entry!r}", entry, {n.op for n in nodes})
    return matches


def _add(found: dict[Node, str], nodes: Iterable[Node], reason: str) -> None:
    for node in nodes:
        found.setdefault(node, reason)


def _unmatched(subject: str, entry: str, known: Set[str]) -> IgnoredScopeError:
    near = get_close_matches(entry, sorted(known), 3, cutoff=0.5)
    hint = f"did you mean {', '.join(map(repr, near))}?" if near else "nothing looks like it."
    return IgnoredScopeError(
        f"{subject} matches no node of the model; {hint} Remedy: give the name of a node or of the "
        "value that it computes, a glob, or 're:' and a regular expression."
    )

"""The scope: operators that options keep in float, by the names and types of the user's model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, TypeVar

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import OPS, Node
from quantglow.ir.graph.origins import Origin, Origins, find_origins, known_names
from quantglow.quantization.options import QuantizationConfig
from quantglow.support.errors import IgnoredScopeError

Named = TypeVar("Named")

NAMES = "give the name of a node or of its result, a glob, or 're:' and a regular expression"
UNCHOSEN = "not in op_types_to_quantize"
NO_ALIASES: Mapping[str, Sequence[Any]] = {}
MOST_LISTED = 12
"""Maximum number of the model's operator types in an error."""


def excluded_nodes(graph: Graph, config: QuantizationConfig) -> dict[Node, str]:
    """Node that stays float because of ``config`` -> the reason; nodes of bodies are among them.

    Raises ``IgnoredScopeError`` for an entry that matches nothing in the model.
    """
    if not _has_scope(config):
        return {}
    origins = dict(_origins_by_node(graph))
    nodes = (Origin(node.name, node.op) for node in origins)
    reasons = exclude(origins, graph.sources or tuple(nodes), config, known_names(graph))
    # A node with bodies has no int8 form; those of its bodies' nodes are chosen by themselves.
    return {n: why for n, why in reasons.items() if not (n.bodies and why == UNCHOSEN)}


def _has_scope(config: QuantizationConfig) -> bool:
    """Whether an option names operators."""
    scope = config.scope
    named = config.nodes_to_exclude or scope.names or scope.patterns
    return bool(named or scope.types or config.op_types_to_quantize)


def _origins_by_node(graph: Graph) -> Iterator[tuple[Node, Origins]]:
    """Every operator and its origins, those of bodies included."""
    for node in graph.compute_nodes():
        yield node, find_origins(node, graph.origins)
        for body in node.bodies:
            yield from _origins_by_node(body)


def exclude(
    origins: Mapping[Named, Origins],
    sources: Sequence[Origin],
    config: QuantizationConfig,
    aliases: Mapping[str, Sequence[Named]] = NO_ALIASES,
) -> dict[Named, str]:
    """Items that stay float because of ``config`` -> the reason; all have ``origins``.

    A name or type of the model stands for everything that computes a part of such an operator, or
    took it in.  ``op_types_to_quantize`` asks for the operators whose work something does: a Conv
    with its bias and activation is a Conv.  ``sources``: the nodes of the model; ``aliases``:
    further names.  Raises ``IgnoredScopeError`` for an entry that matches no source.
    """
    scope, reasons = config.scope, dict[Named, str]()
    entries = [
        *((entry, "nodes_to_exclude", True) for entry in config.nodes_to_exclude or ()),
        *((entry, "ignored_scope", scope.validate) for entry in scope.names),
        *((f"re:{pattern}", "ignored_scope", scope.validate) for pattern in scope.patterns),
    ]
    names = by_name(origins, sources, aliases) if entries else {}
    model_names = {name for origin in sources for name in _origin_names(origin)}
    for entry, option, validate in entries:
        matches = match_names(entry, names, validate, option, model_names)
        _add(reasons, matches, f"{option} {entry!r}")
    types = {origin.op_type for origin in sources}
    for entry in scope.types:
        if scope.validate:
            check_type(entry, types)
        matches = [item for item, each in origins.items() if entry in each.types]
        _add(reasons, matches, f"ignored_scope type {entry!r}")
    if chosen := _types_to_quantize(config, types):
        _add(reasons, [n for n, each in origins.items() if not each.main_types & chosen], UNCHOSEN)
    return reasons


def by_name(
    origins: Mapping[Named, Origins],
    sources: Sequence[Origin],
    aliases: Mapping[str, Sequence[Named]],
) -> dict[str, Sequence[Named]]:
    """Every name of the model, of a node or of a value -> what computes it or a part of it; nothing
    for what is no operator any more."""
    items_by_name: dict[str, dict[Named, None]] = {n: {} for o in sources for n in _origin_names(o)}
    for name, items in aliases.items():
        items_by_name.setdefault(name, {}).update(dict.fromkeys(items))
    for item, each in origins.items():
        for name in (name for origin in each.all for name in _origin_names(origin)):
            items_by_name.setdefault(name, {})[item] = None
    return {name: tuple(items) for name, items in items_by_name.items()}


def _origin_names(origin: Origin) -> tuple[str, ...]:
    """The names by which a user may mean a node of the model: its own, those of its results."""
    return (*((origin.name,) if origin.name else ()), *origin.results)


def _types_to_quantize(config: QuantizationConfig, types: Set[str]) -> frozenset[str]:
    """The operators that ``op_types_to_quantize`` names; none: all.

    Lists for many models name operators that one model does not have.  Raises
    ``IgnoredScopeError`` where it has none of them, or for a word that is no operator at all.
    """
    chosen = frozenset(config.op_types_to_quantize or ())
    for entry in config.op_types_to_quantize or ():
        if chosen.isdisjoint(types) or not _is_operator(entry):
            check_type(entry, types)
    return chosen


def _is_operator(op_type: str) -> bool:
    """Whether there is such an operator, in quantglow or in ONNX."""
    # Imported here because a process that only runs models needs no onnx.
    from quantglow.importer.onnx import knows_operator

    return op_type in OPS or knows_operator(op_type)


def check_type(entry: str, types: Set[str]) -> None:
    """Raise ``IgnoredScopeError`` for a type that no node of the model has."""
    if entry not in types:
        listed = ", ".join(sorted(types)[:MOST_LISTED])
        more = ", …" if len(types) > MOST_LISTED else ""
        remedy = f"give an operator type of the model: {listed}{more}"
        raise _unmatched_error(f"op type {entry!r}", entry, types, remedy)


def match_names(
    entry: str,
    names: Mapping[str, Sequence[Named]],
    validate: bool = True,
    option: str = "ignored_scope",
    model_names: Set[str] | None = None,
) -> list[Named]:
    """Nodes whose name is the entry of ``option``, fits its glob, or starts with its ``re:``
    expression.

    Raises ``IgnoredScopeError`` where no name matches and ``validate`` is set: with the nearest of
    ``model_names``, else of all.
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
        near = names.keys() if model_names is None else model_names
        raise _unmatched_error(f"{option}: entry {entry!r}", entry.removeprefix("re:"), near, NAMES)
    return [node for nodes in matches for node in nodes]


def _add(reasons: dict[Named, str], nodes: Iterable[Named], reason: str) -> None:
    for node in nodes:
        reasons.setdefault(node, reason)


def _unmatched_error(subject: str, entry: str, names: Set[str], remedy: str) -> IgnoredScopeError:
    near = get_close_matches(entry, sorted(names), 3, cutoff=0.5)
    hint = f"did you mean {', '.join(map(repr, near))}?" if near else "nothing looks like it."
    return IgnoredScopeError(f"{subject} matches no node of the model; {hint} Remedy: {remedy}.")

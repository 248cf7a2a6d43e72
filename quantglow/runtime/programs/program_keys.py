"""Keys of stored programs: hashes of all that a compiled program depends on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping

from quantglow.codegen.llvm.isa.target import Target
from quantglow.codegen.llvm.kernel import add, code_versions
from quantglow.ir.graph.attributes import ArrayMark
from quantglow.ir.graph.family import Case, content_key
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.text import print_without_scales, text_constants, text_scales
from quantglow.ir.symbolic.text import guard_text
from quantglow.runtime.programs.symbolic_graphs import SymbolicGraph
from quantglow.support.arrays import Array


def key_of_graph(graph: Graph, target: Target, threads: int, schedule: str) -> str | None:
    """The key of the program of a graph; None where the source of this package, or of a registered
    target, is unknown."""
    arrays = {**text_constants(graph), **_by_text(text_scales(graph))}
    return _key("one", print_without_scales(graph), arrays, target, str(threads), schedule)


def key_of_general(
    source: SymbolicGraph, hints: Mapping[str, int], caution: int, target: Target, schedule: str
) -> str | None:
    """The key of the program of a graph for all shapes, made for some hints with this caution; any
    number of threads may run it."""
    conditions = "\n".join(map(guard_text, source.conditions))
    settings = (
        str(sorted(hints.items())),
        str(caution),
        conditions,
        str(source.template),
        str(source.ports),
        schedule,
    )
    arrays = {**source.constants, **_by_text(source.scales)}
    return _key("all", source.text, arrays, target, *settings)


def key_of_case(
    identity: str, case: Case, target: Target, threads: int, schedule: str
) -> str | None:
    """The key under which a model of this identity has the key of its program for a case."""
    text = repr((identity, case.shapes, case.values, case.late))
    return _key("case", text, {}, target, str(threads), schedule)


def _by_text(arrays: Mapping[ArrayMark, Array]) -> dict[str, Array]:
    return {f"scale {mark}": array for mark, array in arrays.items()}


def _key(
    kind: str, text: str, arrays: Mapping[str, Array], target: Target, *settings: str
) -> str | None:
    versions = None if target.is_registered else code_versions()
    if versions is None:
        return None
    digest = hashlib.sha256()
    for part in (kind, *versions, target.key, text, *settings, *_describe(arrays)):
        add(digest, part)
    return f"program_{digest.hexdigest()[:40]}"


def _describe(arrays: Mapping[str, Array]) -> Iterator[str | bytes]:
    for name, array in arrays.items():
        yield name
        yield content_key(array)

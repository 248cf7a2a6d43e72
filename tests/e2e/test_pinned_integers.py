"""Ten saved int8 graphs give the integers that they gave in November 2026.

``python -m tools.pinned_graphs`` wrote the graphs and the hashes of their outputs.  A change of
integers on purpose writes them anew, and its commit says why.
"""

from __future__ import annotations

import pytest

import quantglow as qg
from quantglow import interpreter
from quantglow.codegen.llvm.targets import LEVELS, runs_here
from tests.support.combinations import covering
from tests.support.pinned import NAMES, digest, feeds_of, hashes, pinned

HERE = [level for level in LEVELS if runs_here(level)] + ["native"]


def test_each_graph_has_a_hash() -> None:
    assert len(NAMES) == 10 and hashes().keys() == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_interpreter_gives_the_pinned_integers(name: str) -> None:
    graph, (seed, expected) = pinned(name), hashes()[name]
    assert digest([interpreter.interpret(graph, f) for f in feeds_of(graph, seed)]) == expected


@pytest.mark.parametrize("name", NAMES)
def test_the_reference_backend_gives_the_pinned_integers(name: str) -> None:
    graph, (seed, expected) = pinned(name), hashes()[name]
    model = qg.compile(graph, backend="reference")
    assert digest([model.run(None, f) for f in feeds_of(graph, seed)]) == expected


@pytest.mark.slow_variants
@pytest.mark.parametrize(("name", "level", "threads"), covering(NAMES, HERE, [1, 2]))
def test_compiled_code_gives_the_pinned_integers(name: str, level: str, threads: int) -> None:
    graph, (seed, expected) = pinned(name), hashes()[name]
    model = qg.compile(graph, target=level, num_threads=threads)
    assert digest([model.run(None, f) for f in feeds_of(graph, seed)]) == expected

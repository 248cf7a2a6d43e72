"""One general program against a program of its own for each shape: equal bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from quantglow.codegen.llvm.isa.target import Target
from quantglow.ir.graph.family import Case
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.signature import Signature
from quantglow.ir.program.layout import ALIGNMENT
from quantglow.ir.symbolic.guards import Relation
from quantglow.ir.symbolic.size import align
from quantglow.runtime.native.executable import LlvmExecutable
from quantglow.runtime.native.loaded import Arenas
from quantglow.runtime.programs.build import Compiler
from quantglow.runtime.shapes.general import GeneralProgram, general_program
from tests.matrix.harness import TARGETS, on_llvm
from tests.support.guarded import guarded

QUICK = {TARGETS[0], TARGETS[-1]}
LEVELS = [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in TARGETS]
"""Every level that runs here; all but two of them are for ``make test-all``."""

Sizes = Mapping[str, int]
Make = Callable[[Sizes], Graph]
"""The graph for sizes by name, which may be free."""


def general(
    make: Make, hint: Sizes, target: Target, threads: int = 1, caution: int = 0
) -> GeneralProgram:
    """The general program that is made at the hint.  Its inputs have the sizes as named axes.

    ``caution``: as for a program that is made when others do not serve.  No batch is left to
    programs that compute it in pieces.
    """
    at_hint = make(hint)
    named = {size: name for name, size in hint.items()}
    assert len(named) == len(hint), "the sizes of a hint must differ"
    shapes = {node.name: node.type.shape for node in at_hint.inputs}
    dims = {n: tuple(named.get(d, d) for d in shape) for n, shape in shapes.items()}
    signature = Signature.from_json(
        {
            "inputs": [
                {"name": n.name, "dtype": n.type.dtype.value, "dims": list(dims[n.name])}
                for n in at_hint.inputs
            ],
            "outputs": [],
        }
    )

    def graph_at(case: Case) -> Graph:
        actual: dict[str, int] = {}
        for name, shape in case.shapes:
            for dim, size in zip(dims[name], shape, strict=True):
                actual.setdefault(str(dim), size)
        return make({name: actual[name] for name in hint})

    compiler = Compiler(target, threads)
    built = general_program(signature, Case.of(shapes), graph_at, compiler, caution=caution)
    assert built is not None
    return replace(built, source=replace(built.source, claimed_batch=None))


def assert_serves(
    make: Make,
    hint: Sizes,
    others: Sequence[Sizes],
    target: Target,
    threads: int = 1,
    caution: int = 0,
) -> None:
    """The program made at ``hint`` serves all ``others``, with the bytes of their own programs."""
    program = general(make, hint, target, threads, caution)
    loaded = replace(program.loaded, arenas=Arenas(guarded_bytes))
    pairs = program.lowered.guards.recorded.items()
    fixed = [f"{g} ({place})" for g, place in pairs if g.relation is Relation.EQUAL]
    assert not fixed, fixed
    random = np.random.default_rng(0)
    for sizes in (hint, *others):
        graph = make(sizes)
        feeds = {n.name: drawn(n.type, random) for n in graph.inputs}
        values = program.values_at(Case.fitting(feeds))
        assert values is not None, (sizes, not_held(program, sizes))
        served = LlvmExecutable.of(loaded, values)
        outputs = [guarded(array, at_end=True) for array in served.new_outputs()]
        inputs = {name: guarded(array, at_end=True) for name, array in feeds.items()}
        pairs, expected = served.run(inputs, outputs), on_llvm(graph, feeds, target, threads)
        for one, other in zip(pairs, expected, strict=True):
            assert one.shape == other.shape and one.tobytes() == other.tobytes(), sizes


def guarded_bytes(nbytes: int) -> np.ndarray:
    """An arena full of ones: what a program does not write before it reads it shows."""
    return guarded(np.full(align(nbytes, ALIGNMENT), 0xFF, np.uint8), at_end=True)


def not_held(program: GeneralProgram, sizes: Sizes) -> list[str]:
    """The guards that do not hold, with the places that needed them."""
    pairs = program.lowered.guards.recorded.items()
    return [f"{guard} ({place})" for guard, place in pairs if not guard.holds(sizes)]


def drawn(kind, random: np.random.Generator) -> np.ndarray:
    """A value of a type: small integers, or normal numbers."""
    if kind.dtype.is_float:
        return random.standard_normal(kind.shape, dtype=np.float32)
    return random.integers(0, 2 if kind.dtype == "bool" else 100, kind.shape).astype(
        kind.dtype.numpy
    )

"""The same case with free dimensions: programs for all shapes beside one for each shape.

Float results may differ by rounding of constants, integers not at all.  A shape that a program of
its own does not take must be refused, too.  In half of the cases onnxruntime computes some of the
operators, so that graphs are cut into segments; in half of them programs are made as when others do
not serve a shape, with smaller tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import onnx

import quantglow as qg
from quantglow.importer.onnx.nodes.context import IMPORTERS, qualify
from quantglow.ir.graph.family import Case as ShapeCase
from quantglow.ir.graph.graph import Graph
from quantglow.runtime.compiled import CompiledModel
from quantglow.runtime.shapes import general_programs
from quantglow.runtime.shapes.free_shapes import FreeShapes
from quantglow.runtime.shapes.general_programs import HALVINGS
from quantglow.support.arrays import Array
from tests.generators.onnx_models.models import Case, Feeds
from tests.support.free_dimensions import RESIZES, freed, resized

SHARE = 0.12
"""Share of cases whose dimensions are made free."""
CUT_SHARE = 0.5
"""Share of these in which onnxruntime computes one or two kinds of operators."""
LATE_SHARE = 0.5
"""Share of these whose programs are made late."""
TOLERANCE = 1e-5

Compile = Callable[[onnx.ModelProto], object]
Exact = Callable[[Graph], Graph]
Results = list[Array] | str

LAX = "Op (NegativeLogLikelihoodLoss) [ShapeInferenceError]"
"""onnxruntime refuses more columns than labels where sizes are fixed, and computes free ones."""


def free_difference(case: Case, compile_: Compile, quantize: Compile, exact: Exact) -> str:
    """The difference of a case at other shapes in words, or an empty text.

    ``quantize`` makes an int8 model; ``exact`` leaves the outputs of a graph that are integers.
    """
    rng = np.random.default_rng(len(case.model.SerializeToString()) + 2)
    if rng.random() > SHARE:
        return ""
    kinds = sorted({qualify(node) for node in case.model.graph.node}.intersection(IMPORTERS))
    count = int(rng.integers(1, 3)) if rng.random() < CUT_SHARE else 0
    left_out = [kinds[i] for i in rng.permutation(len(kinds))[:count]]
    late = np.random.default_rng(len(case.model.SerializeToString()) + 5)
    halvings = int(late.integers(1, 5)) * HALVINGS if late.random() < LATE_SHARE else 0
    with without_importers(left_out), made_late(halvings):
        actual = _difference(case, compile_, quantize, exact, rng)
    return f"{left_out} left out: {actual}" if actual and left_out else actual


@contextmanager
def without_importers(kinds: list[str]) -> Iterator[None]:
    """Operators of these kinds are left to onnxruntime meanwhile."""
    removed = {kind: IMPORTERS.pop(kind) for kind in kinds}
    try:
        yield
    finally:
        IMPORTERS.update(removed)


@contextmanager
def made_late(halvings: int) -> Iterator[None]:
    """Programs for all shapes are made meanwhile as if others had been made before."""
    graphs, programs = general_programs.symbolic_graph, general_programs.program_for_all

    def symbolic_graph(*arguments: Any, caution: int = 0, **named: Any) -> Any:
        return graphs(*arguments, caution=caution + halvings, **named)

    def program_for_all(source: Any, hints: Any, caution: int, *others: Any) -> Any:
        return programs(source, hints, caution + halvings, *others)

    patched: Any = general_programs
    patched.symbolic_graph, patched.program_for_all = symbolic_graph, program_for_all
    try:
        yield
    finally:
        patched.symbolic_graph, patched.program_for_all = graphs, programs


def _difference(
    case: Case, compile_: Compile, quantize: Compile, exact: Exact, rng: np.random.Generator
) -> str:
    model = freed(case.model, bool(rng.random() < 0.5))
    try:
        float_models, int8_models = programs_of(compile_(model)), programs_of(quantize(model))
    except qg.QuantglowError:
        return ""
    actual = "" if float_models is None else differs(float_models, case.samples[0], TOLERANCE)
    if actual or int8_models is None:
        return actual
    exact_models = with_exact_outputs(int8_models, exact, case.samples[0])
    return "" if exact_models is None else differs(exact_models, case.samples[0], 0.0)


def programs_of(model: object) -> FreeShapes | None:
    """The programs of a model that is compiled whole."""
    programs = model.specialisations if isinstance(model, CompiledModel) else None
    return programs if isinstance(programs, FreeShapes) else None


def with_exact_outputs(models: FreeShapes, exact: Exact, sample: Feeds) -> FreeShapes | None:
    """The same programs with the outputs that are exact at the shapes of a sample."""
    try:
        first = models.graph_at(ShapeCase.fitting(fitting(models, sample), models.deciding))
    except qg.QuantglowError:
        return None
    names = {name for name, _ in exact(first).outputs}.intersection(dict(first.outputs))

    def graph_at(case: ShapeCase) -> Graph:
        graph = models.graph_at(case)
        return replace(graph, outputs=tuple(pair for pair in graph.outputs if pair[0] in names))

    if not names:
        return None
    return FreeShapes(models.signature, graph_at, models.compiler, deciding=models.deciding)


def fitting(models: FreeShapes, sample: Feeds) -> Feeds:
    """The feeds of the inputs of a model, in their types."""
    types = {port.name: port.dtype.numpy for port in models.signature.inputs}
    return {name: array.astype(types[name]) for name, array in sample.items() if name in types}


def differs(models: FreeShapes, sample: Feeds, tolerance: float) -> str:
    """Shapes one after the other, as a user would feed them."""
    for resize in RESIZES:
        feeds = fitting(models, {name: resized(array, resize) for name, array in sample.items()})
        actual, is_bound = by_all(models, feeds)
        results = by_own(models, feeds)
        if isinstance(results, str):
            if is_bound and LAX not in results:
                return f"{shown(feeds)}: is refused by a program of its own: {results:.300}"
            continue  # refused by all, or left to onnxruntime
        if isinstance(actual, str):
            return f"{shown(feeds)}: is refused: {actual:.300}"
        if not all(is_near(f, w, tolerance) for f, w in zip(actual, results, strict=True)):
            return f"{shown(feeds)}: outputs differ"
    return ""


def by_all(models: FreeShapes, feeds: Feeds) -> tuple[Results, bool]:
    """The outputs that a user gets, or the error of a refusal; whether they come from a program for
    all shapes of the whole model.
    """
    try:
        served = models.at(feeds)
        return served.run(feeds), served.is_general and not served.is_in_parts
    except qg.QuantglowError as error:
        return str(error), False


def by_own(models: FreeShapes, feeds: Feeds) -> Results:
    """The outputs of a program for these shapes alone, or the error of a refusal."""
    try:
        graph = models.graph_at(ShapeCase.fitting(feeds, models.deciding))
        return models.compiler.compile(graph).executable.run(feeds)
    except qg.QuantglowError as error:
        return str(error)


def shown(feeds: Feeds) -> str:
    return str({name: array.shape for name, array in feeds.items()})


def is_near(actual: Array, expected: Array, tolerance: float) -> bool:
    """Whether arrays are equal but for rounding."""
    if (actual.shape, actual.dtype) != (expected.shape, expected.dtype):
        return False
    if actual.dtype.kind != "f":
        return bool(np.array_equal(actual, expected))
    numbers = expected[np.isfinite(expected)]
    near = tolerance * float(np.abs(numbers).max(initial=0.0))
    return bool(np.allclose(actual, expected, rtol=0, atol=near, equal_nan=True))

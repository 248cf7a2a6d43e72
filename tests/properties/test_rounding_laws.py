"""A graph that shows no rounding of stored weights is the one that the model's file gives."""

from __future__ import annotations

import pytest

import quantglow as qg
from quantglow.api.models.families import Built, is_alike
from quantglow.importer.onnx import may_show_rounding
from quantglow.importer.onnx.weights import storage
from quantglow.ir.graph.family import Case
from quantglow.support.errors import QuantglowError
from tests.fuzz.compare import Setting
from tests.fuzz.free_sizes import fitting, programs_of
from tests.generators.onnx_models.models import drawn
from tests.support.free_dimensions import RESIZES, freed, resized

GROUPS, SEEDS = 2, 12


def graphs_alike(seed: int) -> list[bool]:
    """Whether the graph of each further shape that shows nothing is that of the file."""
    case = drawn(seed)
    try:
        model = Setting().quantize(freed(case.model, bool(seed % 2)), case.samples)
    except qg.QuantglowError:
        return []
    programs = programs_of(model)
    built = getattr(programs and programs.graph_at, "__self__", None)
    if programs is None or not isinstance(built, Built) or built.is_late:
        return []
    alike = []
    for resize in RESIZES:
        feeds = {name: resized(array, resize) for name, array in case.samples[0].items()}
        shape = Case.fitting(fitting(programs, feeds), programs.deciding)
        try:
            graph = built.exact_graph_at(shape)
        except QuantglowError:
            continue
        decided = [each.graph for each in (built.decided or {}).values()]
        if not may_show_rounding(built.family.source, graph, decided):
            alike.append(is_alike(graph, built.origin.graph_at(shape)))
    return alike


@pytest.mark.parametrize("group", range(GROUPS))
def test_a_graph_that_shows_no_rounding_is_that_of_the_file(
    group: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "LEAST_NBYTES", 64)  # weights of drawn models are small
    seeds = range(group * SEEDS, (group + 1) * SEEDS)
    alike = [each for seed in seeds for each in graphs_alike(seed)]
    assert all(alike)
    assert len(alike) >= SEEDS // 2

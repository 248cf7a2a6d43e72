"""The generator draws every operator that is compiled."""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest

from quantglow.importer.onnx.nodes.context import IMPORTERS
from tests.generators.onnx_models.drawing import FLOAT, OPSETS, Drawing, Rejected
from tests.generators.onnx_models.operators import FAMILIES, Family
from tools.operators import PAGE

TRIES = 600


def drawn_by(family: Family) -> set[str]:
    """Operators that the family adds, out of those that it declares."""
    actual: set[str] = set()
    for seed in range(TRIES):
        drawing = Drawing(np.random.default_rng(seed), OPSETS[seed % len(OPSETS)])
        drawing.input(FLOAT, drawing.shape())
        drawing.input(FLOAT, drawing.shape())
        try:
            family.draw(drawing)
        except Rejected:
            continue
        actual |= {node.op_type for node in drawing.nodes}.intersection(family.operators)
        if actual == set(family.operators):
            break
    return actual


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.draw.__name__)
def test_a_family_draws_each_of_its_operators(family: Family) -> None:
    assert drawn_by(family) == set(family.operators)


def test_every_compiled_operator_is_drawn() -> None:
    """These are the operators of the page's table, and those of ONNX with an importer but no
    test.
    """
    rows = re.findall(r"^\| (.+?) \| (yes|some) \| ", PAGE.read_text(), re.MULTILINE)
    table = {name for names, _ in rows for name in names.split(", ")}
    assert "Conv" in table
    imported = {name for name in IMPORTERS if "." not in name and onnx.defs.has(name)}
    drawn = {name for family in FAMILIES for name in family.operators}
    assert sorted((table | imported) - drawn) == []

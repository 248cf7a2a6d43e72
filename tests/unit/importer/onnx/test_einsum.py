"""Einsum in the forms that networks write, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from quantglow.importer.onnx import import_model
from quantglow.interpreter import interpret
from quantglow.ir.ops import MatMul
from quantglow.support.errors import ModelError
from tests.unit.importer.onnx.onnx_models import floats, single

SIZES = {"a": 2, "b": 3, "c": 4, "d": 5, "i": 3, "j": 4, "k": 2}


def operands(equation: str) -> list[np.ndarray]:
    terms = equation.split("->")[0].replace("...", "ab").split(",")
    return [floats(*(SIZES[c] for c in term), seed=i) for i, term in enumerate(terms)]


@pytest.mark.parametrize(
    "equation",
    [
        "ij,jk->ik", "ij,jk", "bij,bjk->bik", "abid,abjd->abij", "abij,abjd->aibd",
        "...ij,...jk->...ik", "...i,ij->...j", "ij->ji", "ij->", "ij", "i,j->ij", "ii->i", "ii",
        "bii->bi", "ij,ij->", "ij,ij->ij", "ij,jk,kd->id", "ab,bc,cd->ad", "bcd,d->b", "aij->ia",
        "i,i", "ij,cd->", "iji->j",
    ],
)  # fmt: skip
def test_an_equation_means_what_numpy_says(equation: str) -> None:
    arrays = operands(equation)
    model, feeds = single("Einsum", *arrays, equation=equation)
    (actual,) = interpret(import_model(model), feeds)
    np.testing.assert_allclose(actual, np.einsum(equation, *arrays), rtol=1e-4, atol=1e-5)


def test_an_ellipsis_broadcasts() -> None:
    x, y = floats(1, 3, 2), floats(4, 2, 5)
    model, feeds = single("Einsum", x, y, equation="...ij,...jk->...ik")
    (actual,) = interpret(import_model(model), feeds)
    np.testing.assert_allclose(actual, x @ y, rtol=1e-4, atol=1e-5)


def test_attention_becomes_one_product() -> None:
    model, _ = single("Einsum", *operands("abid,abjd->abij"), equation="abid,abjd->abij")
    nodes = import_model(model).compute_nodes()
    assert sum(isinstance(node, MatMul) for node in nodes) == 1


@pytest.mark.parametrize("equation", ["ij,jk,kl->il", "ij->ijj", "i->i", "ij->k"])
def test_an_equation_that_does_not_fit_is_an_error(equation: str) -> None:
    model, _ = single("Einsum", floats(2, 3), floats(3, 2), equation=equation)
    with pytest.raises(ModelError, match="Einsum"):
        import_model(model)

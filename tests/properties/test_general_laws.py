"""A program for all shapes computes what a program of each shape does."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import quantglow as qg
from quantglow.ir.graph.family import Case
from quantglow.runtime.shapes.free_shapes import FreeShapes
from tests.support import effort
from tests.support.free_network import free_model, image

SHAPES = st.tuples(st.integers(1, 4), st.just(3), st.integers(7, 40), st.integers(7, 40))
FIRST = ((1, 3, 16, 24), (2, 3, 13, 18), (3, 3, 31, 17))


@cache
def model(is_int8: bool, threads: int) -> FreeShapes:
    """A network whose batch, height and width are free, after its first shapes."""
    samples = [image(FIRST[0], seed) for seed in range(4)]
    if is_int8:
        compiled = qg.quantize_and_compile(
            free_model(), samples, num_threads=threads, progress=False
        )
    else:
        compiled = qg.compile(free_model(), num_threads=threads)
    for shape in FIRST:
        compiled.run(None, {"x": image(shape)})
    assert isinstance(compiled.specialisations, FreeShapes)
    return compiled.specialisations


@pytest.mark.slow
@effort.expensive
@given(SHAPES, st.booleans(), st.sampled_from([1, 2, 3]))
def test_a_bound_program_equals_one_of_its_own(shape, is_int8: bool, threads: int) -> None:
    programs = model(is_int8, threads)
    feeds = {"x": image(shape, 5)}
    served = programs.at(feeds)
    compiled = programs.compiler.compile(programs.graph_at(Case.fitting(feeds)))
    for value, expected in zip(served.run(feeds), compiled.executable.run(feeds), strict=True):
        if is_int8:
            np.testing.assert_array_equal(value, expected)
        else:
            np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-5)


def test_most_shapes_are_bound() -> None:
    programs = model(True, 1)
    shapes = [(n, 3, h, w) for n in (1, 2, 4) for h, w in ((20, 20), (33, 19), (24, 40))]
    served = [programs.at({"x": image(shape)}) for shape in shapes]
    assert sum(value.is_general for value in served) >= 6

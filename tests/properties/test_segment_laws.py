"""Segments of a program for all shapes compute what a program of each shape does."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import quantglow as qg
from quantglow.ir.graph.family import Case
from quantglow.runtime.compiled import CompiledModel
from quantglow.runtime.shapes.free_shapes import FreeShapes
from tests.support import effort
from tests.support.deformable import deformable
from tests.support.free_network import image

SHAPES = st.tuples(st.integers(1, 4), st.just(3), st.integers(5, 40), st.integers(5, 40))
FIRST = ((1, 3, 16, 24), (2, 3, 13, 18), (3, 3, 31, 17))


@cache
def model(is_int8: bool, threads: int, is_loaded: bool) -> FreeShapes:
    """A network with a DeformConv in the middle, after its first shapes, perhaps from a file."""
    samples = [image(FIRST[0], seed) for seed in range(4)]
    if is_int8:
        compiled = qg.quantize_and_compile(
            deformable(), samples, num_threads=threads, progress=False, verify=False
        )
    else:
        compiled = qg.compile(deformable(), num_threads=threads)
    for shape in FIRST:
        compiled.run(None, {"x": image(shape)})
    if is_loaded:
        with tempfile.TemporaryDirectory() as folder:
            compiled.save(Path(folder) / "m.qgm")
            compiled = qg.load(Path(folder) / "m.qgm", num_threads=threads)
    assert isinstance(compiled, CompiledModel)
    assert isinstance(compiled.specialisations, FreeShapes)
    return compiled.specialisations


@pytest.mark.slow
@effort.expensive
@given(SHAPES, st.booleans(), st.sampled_from([1, 2, 3]), st.booleans())
def test_bound_segments_equal_those_of_a_program_of_its_own(
    shape, is_int8: bool, threads: int, is_loaded: bool
) -> None:
    programs = model(is_int8, threads, is_loaded)
    feeds = {"x": image(shape, 5)}
    served = programs.at(feeds)
    compiled = programs.compiler.compile(programs.graph_at(Case.fitting(feeds)))
    for value, expected in zip(served.run(feeds), compiled.executable.run(feeds), strict=True):
        if is_int8:
            np.testing.assert_array_equal(value, expected)
        else:
            np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_most_shapes_are_bound() -> None:
    programs = model(True, 1, False)
    shapes = [(n, 3, h, w) for n in (1, 2, 4) for h, w in ((20, 20), (33, 19), (24, 40))]
    served = [programs.at({"x": image(shape)}) for shape in shapes]
    assert sum(value.is_general for value in served) >= 8


def test_a_file_has_the_segments_for_all_shapes() -> None:
    programs = model(True, 1, True)
    assert programs.opened.general
    assert programs.at({"x": image((2, 3, 22, 26))}).is_general

"""Loops whose bodies read all that they appended agree with onnxruntime at any number of trips."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import quantglow as qg
from tests.support.attending_loop import attending_loop, feeds_of
from tests.support.effort import expensive
from tests.unit.importer.onnx.onnx_models import by_onnxruntime
from tests.unit.runtime.hybrid.test_compiled_loops import loop_of, run_from_the_first_trip

COUNTS = st.sampled_from([0, 1, 63, 64, 65, 200]) | st.integers(0, 300)

"""Numbers of trips."""

FORMS = st.fixed_dictionaries(
    {"stops": st.booleans(), "numbered": st.booleans(), "behind": st.booleans()}
)


def assert_equals_onnxruntime(compiled: Any, model: onnx.ModelProto, feeds: Any) -> None:
    for one, other in zip(compiled.run(None, feeds), by_onnxruntime(model, feeds), strict=True):
        assert one.dtype == other.dtype
        # onnxruntime does not know the rank of what no trip stacks.
        assert one.shape == other.shape or one.size == other.size == 0
        np.testing.assert_allclose(one.reshape(other.shape), other, rtol=1e-4, atol=1e-4)


@cache
def compiled_once(stops: bool, numbered: bool, behind: bool, threads: int) -> Any:
    """A model for all sizes and numbers of trips, compiled once."""
    model = attending_loop(
        None, batch="N", start="P", stops=stops, numbered=numbered, behind=behind
    )
    return model, qg.compile(model, num_threads=threads)


@pytest.mark.slow
@given(
    form=FORMS,
    trips=COUNTS,
    stop=st.integers(0, 300),
    batch=st.integers(1, 4),
    start=st.integers(0, 20),
    threads=st.integers(1, 2),
)
@expensive
def test_one_model_makes_any_number_of_trips(
    form: dict[str, bool], trips: int, stop: int, batch: int, start: int, threads: int
) -> None:
    if not trips:
        form = {**form, "behind": False}  # onnxruntime refuses the product of no rows
    model, compiled = compiled_once(**form, threads=threads)
    feeds = feeds_of(model, trips + stop, N=batch, P=start, trips=trips, stop=stop)
    assert_equals_onnxruntime(compiled, model, feeds)


@given(form=FORMS, trips=st.sampled_from([65, 66, 200]), batch=st.integers(1, 2))
@expensive
def test_a_constant_number_of_trips(form: dict[str, bool], trips: int, batch: int) -> None:
    model = attending_loop(trips, batch=batch, start=2, **form)
    compiled = qg.compile(model, num_threads=1)
    for stop in (trips, 3):
        assert_equals_onnxruntime(compiled, model, feeds_of(model, trips, stop=stop))


@cache
def int8() -> tuple[onnx.ModelProto, Any, Any]:
    """A model in int8 for one and for two threads."""
    model = attending_loop(None, batch="N", start="P")
    samples = [feeds_of(model, n, N=1 + n % 2, P=1 + n, trips=80) for n in range(4)]
    built = [
        qg.quantize_and_compile(model, samples, num_threads=n, verify=False, progress=False)
        for n in (1, 2)
    ]
    return model, *built


@pytest.mark.slow
@given(trips=COUNTS.filter(bool), batch=st.integers(1, 3), start=st.integers(1, 20))
@expensive
def test_int8_is_equal_bit_for_bit_however_trips_run(trips: int, batch: int, start: int) -> None:
    model, one, two = int8()
    feeds = feeds_of(model, trips, N=batch, P=start, trips=trips)
    results = one.run(None, feeds)
    with pytest.MonkeyPatch.context() as patch:
        _, progress = run_from_the_first_trip(two, feeds, patch)
    loop = loop_of(two)
    assert loop.int8 is not None
    outputs = [info.name for info in loop.int8.get_outputs()]
    while progress.goes_on:
        built = loop.int8.run(None, progress.feeds)
        progress.proceed(dict(zip(outputs, built, strict=True)))
    for array, other in zip(results, progress.results.values(), strict=True):
        assert array.tobytes() == other.tobytes()

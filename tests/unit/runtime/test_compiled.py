"""A compiled model has the interface of onnxruntime's session, in any thread and any process."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime
import pytest

import quantglow as qg
from quantglow.runtime.programs.build import Compiler, available_cores, thread_count
from tests.support.small_network import SHAPE, small_model, small_samples


@pytest.fixture(scope="module")
def compiled() -> qg.CompiledModel:
    return qg.quantize_and_compile(small_model(), small_samples(), num_threads=2, verify=False)


def test_float_outputs_are_those_of_onnxruntime() -> None:
    model, feeds = small_model(), {"x": small_samples()[0]}
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for value, expected in zip(
        qg.compile(model).run(None, feeds), session.run(None, feeds), strict=True
    ):
        np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", ["llvm", "reference"])
def test_int8_outputs_are_those_of_the_interpreter(compiled: Any, backend: str) -> None:
    feeds = {"x": small_samples()[0]}
    actual = Compiler.of(backend=backend).compile(compiled.graph).executable.run(feeds)
    for value, expected in zip(actual, qg.interpret(compiled.graph, feeds), strict=True):
        np.testing.assert_array_equal(value, expected)


def test_inputs_and_outputs_are_described_as_in_onnxruntime(compiled: Any) -> None:
    session = onnxruntime.InferenceSession(small_model().SerializeToString())
    ours = [*compiled.get_inputs(), *compiled.get_outputs()]
    theirs = [*session.get_inputs(), *session.get_outputs()]
    assert [(i.name, i.shape, i.type) for i in ours] == [(i.name, i.shape, i.type) for i in theirs]


def test_outputs_come_in_the_order_asked_for(compiled: Any) -> None:
    feeds = {"x": small_samples()[0]}
    scores, features = compiled.run(None, feeds)
    results = compiled.run(["features", "scores"], feeds)
    assert results[0].tolist() == features.tolist()
    assert results[1].tolist() == scores.tolist()


def test_arrays_pass_by_position_and_by_name(compiled: Any) -> None:
    x = small_samples()[0]
    for one, other in zip(compiled(x), compiled(x=x), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_single_output_comes_alone() -> None:
    model = small_model()
    del model.graph.output[1]
    assert qg.compile(model)(small_samples()[0]).shape == (1, 3)


@pytest.mark.parametrize(
    ("names", "feeds", "message"),
    [
        (["logits"], {"x": np.zeros(SHAPE, np.float32)}, "unknown output.*logits.*scores"),
        (None, {}, "missing input.*'x'"),
        (None, {"x": np.zeros(SHAPE, np.float32), "y": 1}, "unknown input.*'y'"),
        (None, {"x": np.zeros(SHAPE)}, r"float64.*Remedy: cast it with .astype\(numpy.float32\)"),
        (None, {"x": np.zeros((2, 6, 6), np.float32)}, r"must be float32 of shape \(1, 2, 6, 6\)"),
        (None, {"x": np.zeros((2, 6, 6), np.float32)}, "Remedy: add the first axis, of size 1"),
        (None, {"x": np.zeros((3, 2, 6, 6), np.float32)}, "Remedy: feed 1 at a time"),
        (None, {"x": np.zeros((1, 2, 5, 6), np.float32)}, "Remedy: preprocess as for the model"),
        (None, {"x": [[1.0], [2.0, 3.0]]}, "'x' is not an array.*Remedy: give"),
        (None, {"x": ["a"]}, "Remedy: give an array of numbers"),
        (None, {"x": np.zeros(SHAPE, ml_dtypes.bfloat16)}, r"bfloat16.*Remedy: cast it with"),
        (None, np.zeros(SHAPE, np.float32), "feeds must map"),
    ],
)
def test_feeds_that_do_not_fit_are_refused(
    compiled: Any, names: Any, feeds: Any, message: str
) -> None:
    with pytest.raises(qg.InputError, match=message):
        compiled.run(names, feeds)


def test_too_many_arrays_are_refused(compiled: Any) -> None:
    x = small_samples()[0]
    with pytest.raises(qg.InputError, match="2 arrays given"):
        compiled(x, x)


def test_an_input_given_twice_is_refused(compiled: Any) -> None:
    x = small_samples()[0]
    with pytest.raises(qg.InputError, match="both by position and by name"):
        compiled(x, x=x)


def test_many_threads_get_their_own_results(compiled: Any) -> None:
    inputs = small_samples(32, seed=5)
    expected = [compiled(x)[0].tolist() for x in inputs]
    with ThreadPoolExecutor(8) as pool:
        actual = [outputs[0].tolist() for outputs in pool.map(compiled, inputs * 8)]
    assert actual == expected * 8


def test_results_stay_when_the_model_runs_again(compiled: Any) -> None:
    one, other = small_samples(2)
    first = compiled(one)[0]
    before = first.tolist()
    compiled(other)
    assert first.tolist() == before


def test_strided_inputs_are_read_as_numpy_reads_them(compiled: Any) -> None:
    x = small_samples()[0]
    strided = np.asfortranarray(x)
    np.testing.assert_array_equal(compiled(strided)[0], compiled(x)[0])


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_runs_the_model(compiled: Any) -> None:
    x = small_samples()[0]
    expected = compiled(x)[0].tolist()
    child = os.fork()
    if not child:
        os._exit(0 if compiled(x)[0].tolist() == expected else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_threads_default_to_the_available_cores() -> None:
    assert thread_count(None) == available_cores()


def test_available_cores_are_no_more_than_the_processors() -> None:
    assert 1 <= available_cores() <= len(os.sched_getaffinity(0))

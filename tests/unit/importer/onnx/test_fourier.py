"""DFT and STFT mean what ONNX's reference says in float64, and onnxruntime where it is exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

import quantglow as qg
from quantglow.importer.onnx import import_model
from quantglow.importer.onnx.nodes.context import Unsupported
from quantglow.importer.onnx.operators.math import fourier
from quantglow.importer.onnx.operators.math import fourier as transforms
from quantglow.importer.onnx.operators.math.fourier import Transform
from quantglow.interpreter import interpret
from quantglow.ir.graph.graph import Graph
from quantglow.ir.ops import Conv, External, MatMul
from quantglow.support.arrays import Array
from quantglow.support.fourier import turns
from tests.unit.importer.onnx.onnx_models import (
    Const,
    assert_agrees,
    by_onnxruntime,
    floats,
    model_of,
    single,
)

LENGTHS = st.one_of(st.integers(1, 20), st.sampled_from([30, 36, 60, 64, 97, 100, 128]))
"""Odd, even and prime lengths; the larger composite ones take two stages."""

INEXACT = 1e-4
"""Error relative to the largest bin, of onnxruntime if a length is no power of two."""

KINDS = ("forward", "real", "complex", "inverse", "real inverse", "inverse of real")


def scalar(value: int) -> Const:
    return Const(np.array(value, np.int64))


def in_float64(model: onnx.ModelProto, feeds: dict[str, Array]) -> Array:
    """The result of ONNX's reference."""
    wide = {name: array.astype(np.float64) for name, array in feeds.items()}
    (actual,) = ReferenceEvaluator(model).run(None, wide)
    return np.asarray(actual)


def assert_close(actual: Array, expected: Array, tolerance: float = 1e-6) -> None:
    """Check errors relative to the largest bin: float32 sums have some hundred terms."""
    assert actual.shape == expected.shape
    np.testing.assert_allclose(
        actual, expected, rtol=0, atol=tolerance * (1 + np.abs(expected).max())
    )


def transform_model(
    kind: str, shape: tuple[int, ...], axis: int, length: int | None, opset: int = 20
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A DFT, and its signal of this shape, without the parts of a number."""
    is_back = "inverse" in kind
    is_real = kind in ("forward", "real", "inverse of real")
    x = floats(*shape, 1 if is_real else 2)
    inputs: dict[str, Any] = {"inverse": int(is_back)}
    inputs["onesided"] = int(kind in ("real", "real inverse"))
    n = None if length is None else scalar(length)
    if opset < 20:
        return single("DFT", x, *([] if n is None else [n]), opset=opset, axis=axis, **inputs)
    return single("DFT", x, n, scalar(axis), opset=opset, **inputs)


@given(st.data(), st.sampled_from(KINDS), LENGTHS)
def test_dft_is_that_of_the_reference(data: st.DataObject, kind: str, size: int) -> None:
    """The transforms are along any axis, padded and cut to other lengths."""
    rank = data.draw(st.integers(1, 3))
    axis = data.draw(st.integers(0, rank - 1))
    shape = tuple(size if i == axis else data.draw(st.integers(1, 3)) for i in range(rank))
    is_short = kind == "real inverse" and size == 1
    length = data.draw(LENGTHS if is_short else st.one_of(st.none(), LENGTHS))
    counted = data.draw(st.sampled_from([axis, axis - rank - 1]))
    model, feeds = transform_model(kind, shape, counted, length)
    graph = import_model(model)
    graph.verify()
    assert_close(interpret(graph, feeds)[0], in_float64(model, feeds))


@pytest.mark.parametrize("opset", [17, 20])
@pytest.mark.parametrize(
    ("kind", "size"),
    # One bin comes from no samples.
    [(k, n) for k in KINDS for n in (1, 2, 5, 16) if (k, n) != ("real inverse", 1)],
)
def test_dft_is_that_of_onnxruntime(kind: str, size: int, opset: int) -> None:
    """The axis is an attribute before opset 20."""
    model, feeds = transform_model(kind, (2, size, 3), 1, None, opset)
    assert_close(interpret(import_model(model), feeds)[0], by_onnxruntime(model, feeds)[0], 1e-5)


def test_the_default_axes() -> None:
    """The second one before opset 20, the last of the signal since."""
    for opset in (17, 20):
        assert_agrees(*single("DFT", floats(2, 4, 8, 1), opset=opset))


def windowed_model(
    data: st.DataObject, batch: int, n: int, is_computed: bool
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """An STFT of frames of n samples."""
    parts, rank = data.draw(st.sampled_from([(1, 2), (1, 3), (2, 3)]))
    length = n + data.draw(st.integers(0, 50))
    signal = floats(batch, length, *([parts] if rank == 3 else []))
    step = scalar(data.draw(st.integers(1, 20)))
    inputs = {} if parts == 1 and data.draw(st.booleans()) else {"onesided": 0}
    window = None if not is_computed and data.draw(st.booleans()) else floats(n, seed=3)
    frame_length = scalar(n) if window is None or data.draw(st.booleans()) else None
    shown = window if is_computed or window is None else Const(window)
    return single("STFT", signal, step, shown, frame_length, **inputs)


@given(st.data(), st.integers(1, 2), st.sampled_from([1, 2, 5, 8, 16, 30, 64, 100]), st.booleans())
def test_stft_is_that_of_onnxruntime(
    data: st.DataObject, batch: int, n: int, is_computed: bool
) -> None:
    """Rank 2 and 3, real and complex, with all forms of window and frame length."""
    model, feeds = windowed_model(data, batch, n, is_computed)
    tolerance = INEXACT if n & (n - 1) else 1e-6
    actual, expected = interpret(import_model(model), feeds)[0], by_onnxruntime(model, feeds)[0]
    assert_close(actual, expected, tolerance)


def test_without_window_and_frame_length_the_signal_is_one_frame() -> None:
    """onnxruntime refuses what ONNX defines."""
    model, feeds = single("STFT", floats(2, 12, 1), scalar(4), onesided=1)
    expected = np.fft.rfft(feeds["x0"][:, :, 0].astype(np.float64))[:, None]
    results = interpret(import_model(model), feeds)[0]
    assert_close(results, np.stack([expected.real, expected.imag], axis=-1))


@pytest.mark.parametrize("n", [800, 1024])
def test_long_frames_take_two_stages(n: int) -> None:
    model, feeds = single("STFT", floats(1, 3000), scalar(500), Const(floats(n, seed=1)))
    graph = import_model(model)
    assert any(isinstance(node, MatMul) for node in graph.nodes)
    assert not any(isinstance(node, Conv) for node in graph.nodes)
    frames = feeds["x0"].astype(np.float64)[0, np.arange(0, 3001 - n, 500)[:, None] + np.arange(n)]
    expected = np.fft.rfft(frames * floats(n, seed=1))
    assert_close(interpret(graph, feeds)[0][0], np.stack([expected.real, expected.imag], axis=-1))


@pytest.mark.parametrize("n", [400, 512, 4096])
def test_a_constant_signal_has_the_first_bin_only(n: int) -> None:
    model, feeds = transform_model("forward", (1, n), 1, None)
    feeds = {"x0": np.ones_like(feeds["x0"])}
    (actual,) = interpret(import_model(model), feeds)
    assert actual[0, 0, 0] == n
    assert np.abs(actual[0, 1:]).max() < 1e-6 * n


@given(st.integers(1, 3000))
def test_turns_are_exact_at_quarters(n: int) -> None:
    actual = turns(n)
    for quarter, exact in enumerate((1, 1j, -1, -1j)):
        if quarter * n % 4 == 0:
            assert actual[quarter * n // 4] == exact
    np.testing.assert_allclose(actual, np.exp(2j * np.pi * np.arange(n) / n), rtol=0, atol=4e-15)


def test_two_stages_make_fewer_products() -> None:
    whole = Transform(2048, 1025, np.ones(2048), (1, 2))
    assert whole.split is not None
    assert sum(whole.stage_sizes(whole.split)) * transforms.ROUNDS <= whole.dense_size
    assert Transform(2053, 1027, np.ones(2053), (1, 2)).split is None


@pytest.mark.parametrize("n", [2**14, 5 * 5003, 2**40])
def test_no_matrix_is_large(n: int) -> None:
    """The refusal takes no long time, either."""
    with pytest.raises(Unsupported, match=f"the matrix of {n} samples"):
        Transform(n, n // 2 + 1, np.ones(n % 2**20 or 1), (1, 2)).check()


def fallback(graph: Graph) -> list[str]:
    return [node.reason for node in graph.nodes if isinstance(node, External)]


def test_large_matrices_are_left_to_onnxruntime() -> None:
    model, _ = transform_model("forward", (1, 2053), 1, None)
    reasons = fallback(import_model(model, fallback=True))
    assert reasons == ["the matrix of 2053 samples takes 32 MiB"]


def test_onesided_transforms_of_complex_signals_are_left_to_onnxruntime() -> None:
    model, _ = single("STFT", floats(1, 40, 2), scalar(4), None, scalar(8))
    assert fallback(import_model(model, fallback=True)) == [
        "frames of 8 in steps of 4 of a signal of shape (1, 40, 2)"
    ]


@pytest.mark.parametrize("n", [16, fourier.MOST_IN_KERNELS // 512])
def test_signals_of_any_length(n: int) -> None:
    """Compiled anew for each, in one product or in two stages."""
    node = onnx.helper.make_node("STFT", ["x", "step", "window"], ["y"])
    known = {"step": np.array(5, np.int64), "window": np.hanning(n).astype(np.float32)}
    tensors = [onnx.numpy_helper.from_array(array, name) for name, array in known.items()]
    model = model_of([node], {"x": floats(1, 1)}, ["y"], tensors)
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "samples"
    compiled = qg.compile(model, num_threads=1)
    for length in (n, 2 * n + 3):
        feeds = {"x": floats(1, length)}
        (actual,), (expected,) = compiled.run(None, feeds), by_onnxruntime(model, feeds)
        assert_close(actual, expected, INEXACT)

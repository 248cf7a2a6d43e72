"""Samples of other libraries: tensors, lists, and labels beside inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import quantglow as qg
from quantglow.ir.graph.signature import Port, Signature
from quantglow.ir.types import DType
from quantglow.profiling.samples.feeds import read_feeds
from quantglow.profiling.samples.files import without_labels
from quantglow.support.arrays import Array
from tests.support.small_network import small_model, small_samples

IMAGES = Signature((Port("x", DType.F32, ("n", 2, 2)),), ())
TOKENS = Signature((Port("ids", DType.I64, ("n", "s")), Port("mask", DType.F32, ("n", "s"))), ())


class Tensor:
    """A tensor as PyTorch's: it needs ``detach`` before it becomes an array."""

    __module__ = "torch"

    def __init__(self, array: Array, is_free: bool = False) -> None:
        self.array, self.is_free = array, is_free

    def detach(self) -> Tensor:
        return Tensor(self.array, True)

    def cpu(self) -> Tensor:
        return self

    @property
    def dtype(self) -> np.dtype:
        return self.array.dtype

    def numpy(self) -> Array:
        if not self.is_free:
            raise RuntimeError("it requires grad")
        return self.array


class Loader:
    """Batches as a DataLoader gives them: [images, labels]."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches

    def __iter__(self) -> Any:
        return iter(self.batches)


def read(data: Any, signature: Signature) -> list[dict[str, Any]]:
    return [{n: a.tolist() for n, a in feeds.items()} for feeds in read_feeds(data, signature)]


def test_batches_of_a_loader_lose_their_labels() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 2, 2)
    labels = Tensor(np.array([0, 1, 0]))
    expected = [{"x": [image.tolist()]} for image in x]
    assert read(Loader([[Tensor(x), labels]]), IMAGES) == expected
    assert read(Loader([(x, labels)]), IMAGES) == expected
    assert read(Loader([{"x": Tensor(x), "labels": labels}]), IMAGES) == expected
    assert read(Loader([Tensor(x)]), IMAGES) == expected


def test_rows_of_a_data_set_have_lists() -> None:
    data = [{"ids": [1, 2, 3], "mask": [1, 1, 0], "label": 1}, {"ids": [4], "mask": [1]}]
    assert read(data, TOKENS) == [
        {"ids": [[1, 2, 3]], "mask": [[1.0, 1.0, 0.0]]},
        {"ids": [[4]], "mask": [[1.0]]},
    ]


def test_samples_may_lack_the_axis_of_the_batch() -> None:
    assert read([np.zeros((2, 2), np.float32)], IMAGES) == [{"x": [[[0, 0], [0, 0]]]}]


def test_arrays_are_cut_where_only_other_axes_are_free() -> None:
    signature = Signature((Port("x", DType.F32, (1, "h", "w")),), ())
    x = np.arange(6, dtype=np.float32).reshape(3, 1, 2)
    assert read(x, signature) == [{"x": [image.tolist()]} for image in x]


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ({"x": [[1, 2], [3]]}, "sample 0 gives no array for input 'x'.*Remedy"),
        ({"x": "text"}, "expected elements of float32"),
        ({"x": Tensor(np.zeros((2, 2, 2, 2), np.float32))}, "sample 0 does not fit input 'x'"),
        ({"x": np.zeros((1, 2, 2)), "target": 1}, r"has inputs \['target', 'x'\]"),
    ],
)
def test_other_samples_are_refused(sample: Any, message: str) -> None:
    with pytest.raises(qg.CalibrationError, match=message):
        read([sample], IMAGES)


@pytest.mark.parametrize("value", [[0.5], [300]])
def test_lists_that_an_integer_input_does_not_hold_are_refused(value: list[Any]) -> None:
    signature = Signature((Port("x", DType.U8, ("n", 1)),), ())
    assert read([{"x": [7]}], signature) == [{"x": [[7]]}]
    with pytest.raises(qg.CalibrationError, match="expected elements of uint8"):
        read([{"x": value}], signature)


def test_floats_behind_the_inputs_are_no_labels() -> None:
    sample = [np.zeros((1, 2, 2)), np.array([0.5])]
    assert without_labels(sample, ["x"]) == (sample, None)


def test_labels_of_a_loader_give_the_share_of_right_answers() -> None:
    x = small_samples(6)
    exact = qg.compile(small_model(), num_threads=1)
    labels = [exact(item)[0].argmax(-1) for item in x]
    compiled = qg.quantize_and_compile(
        small_model(),
        Loader([[Tensor(item), Tensor(label)] for item, label in zip(x, labels, strict=True)]),
        validation_data=Loader([(item, label) for item, label in zip(x, labels, strict=True)]),
        num_threads=1,
        progress=False,
    )
    assert compiled.report.right.float_share == 1.0

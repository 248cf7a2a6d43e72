"""Answers in outputs: the largest class, or a line of text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from quantglow.cli.recipe_data import READERS, same
from quantglow.support.errors import ModelError
from tests.support.small_network import small_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A file whose metadata names three characters."""
    proto = small_model()
    entry = proto.metadata_props.add()
    entry.key, entry.value = "character", "a\nb\n-"
    onnx.save(proto, tmp_path / "net.onnx")
    return tmp_path / "net.onnx"


def steps(*classes: int) -> np.ndarray:
    """Scores [1, T, 5] with these classes on top."""
    return np.eye(5, dtype=np.float32)[list(classes)][None]


@pytest.mark.parametrize(
    ("classes", "text"),
    [
        ((1, 1, 0, 1, 2), "aab"),
        ((0, 0, 0), ""),
        ((4, 3, 3, 0, 3), " --"),
        ((2,), "b"),
    ],
)
def test_repetitions_and_blanks_are_left_out(
    model: Path, classes: tuple[int, ...], text: str
) -> None:
    assert READERS["text"](model)(steps(*classes)) == text


def test_the_largest_score_is_the_class(model: Path) -> None:
    assert READERS["class"](model)(np.float32([[0.1, 0.7, 0.2]])) == 1


def test_text_needs_characters(tmp_path: Path) -> None:
    onnx.save(small_model(), tmp_path / "net.onnx")
    with pytest.raises(ModelError, match=r"no entry 'character'.*Remedy"):
        READERS["text"](tmp_path / "net.onnx")


def test_characters_must_be_as_many_as_classes(model: Path) -> None:
    with pytest.raises(ModelError, match="has 7 classes, but its metadata 3 characters"):
        READERS["text"](model)(np.zeros((1, 2, 7), np.float32))


def test_same_is_a_share() -> None:
    assert same(["ab", "c", ""], [np.str_("ab"), "d", ""]) == pytest.approx(2 / 3)

"""Hashes of integers: what they are of, and that differences are found."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from quantglow.codegen.llvm.targets import LEVELS, runs_here
from quantglow.ir.ops import Add, Dequantize, Quantize, Sigmoid
from quantglow.ir.types import DType, ElementType, QuantParams
from tests.support.builder import Builder, cut
from tools import one_hash
from tools.hashed_networks import NETWORKS
from tools.integer_hashes import FEWEST, INTERPRETER, with_integer_results

STEPS = ElementType(DType.I8, QuantParams.per_tensor(0.5, 3))
HERE = [level for level in LEVELS if runs_here(level)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MNIST, calibrated as on every x86-64."""
    folder = tmp_path_factory.mktemp("networks")
    command = ["-m", "tools.integer_hashes", "write", str(folder), "mnist"]
    subprocess.run([sys.executable, *command], check=True)
    return folder


def test_ten_networks_have_a_hash() -> None:
    assert one_hash.expected().keys() == NETWORKS.keys() and len(NETWORKS) == 10


@pytest.mark.slow
def test_levels_of_this_machine_agree_with_the_interpreter(folder: Path) -> None:
    assert one_hash.compare(folder, "mnist", HERE)[1]


def test_another_integer_is_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def integers_at(place: str, folder: Path, name: str) -> str:
        return "same" if place == INTERPRETER else "other"

    monkeypatch.setattr(one_hash, "integers_at", integers_at)
    assert not one_hash.compare(folder, "mnist", HERE[:1])[1]


def test_integers_of_the_file_are_compared(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    actual, _ = one_hash.compare(folder, "mnist", [])
    known = {"mnist": one_hash.Hashes(actual.graph, "other")}
    monkeypatch.setattr(one_hash, "expected", lambda: known)
    assert not one_hash.compare(folder, "mnist", [])[1]


def test_results_are_the_last_integers_before_each_output() -> None:
    b = Builder()
    rounded = b.make(Quantize, x=b.input(1, FEWEST), out=STEPS)
    real = b.make(Dequantize, x=rounded)
    graph = b.graph(b.make(Sigmoid, x=real), b.make(Add, x=real, y=real), rounded)
    assert [node for _, node in with_integer_results(graph).outputs] == [rounded]


def test_few_results_bring_their_features() -> None:
    b = Builder()
    features = b.make(Quantize, x=b.input(1, FEWEST), out=STEPS)
    few = cut(b, features, 0, 2)
    graph = b.graph(b.make(Dequantize, x=few))
    assert [node for _, node in with_integer_results(graph).outputs] == [few]
    assert [node for _, node in with_integer_results(graph, True).outputs] == [few, features]

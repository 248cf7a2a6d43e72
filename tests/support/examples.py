"""Modules of ``examples/``, and the networks that they quantize."""

from __future__ import annotations

import importlib.util
import runpy
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest

import quantglow as qg
from quantglow.support.arrays import Array
from tests.support.embedded import network
from tests.support.small_network import small_model, small_samples

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
CALIBRATION = 8
"""Number of calibration samples."""

NETWORKS = ("mnist", pytest.param("ppocr_cls", marks=pytest.mark.slow))

BATCHES = (
    ("mnist", 1),
    pytest.param("ppocr_cls", 1, marks=pytest.mark.slow),
    pytest.param("ppocr_cls", 2, marks=pytest.mark.slow),
)
"""The networks, at the batches that they allow."""


@cache
def load_example(name: str) -> ModuleType:
    """An example as a module."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    # Its dataclasses look their module up.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def run_example(name: str, folder: Path) -> None:
    """Run an example as a program on a small model and its samples."""
    onnx.save(small_model(), folder / "model.onnx")
    np.savez(folder / "samples.npz", x=np.concatenate(small_samples()))
    with pytest.MonkeyPatch.context() as patch:
        files = (str(folder / file) for file in ("model.onnx", "samples.npz"))
        patch.setattr(sys, "argv", [name, *files])
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")


def count_lines(name: str) -> int:
    """Number of lines of an example."""
    return len((EXAMPLES / f"{name}.py").read_text(encoding="utf-8").splitlines())


@cache
def int8_graph(name: str, batch: int = 1) -> qg.Graph:
    """A network of the repository, quantized."""
    chosen = network(name)
    graph = qg.import_model(chosen.path, chosen.shapes)
    profile = qg.profile(graph, chosen.feeds(CALIBRATION), progress=False)
    shape = (batch, *chosen.images.shape[1:])
    return qg.quantize(qg.import_model(chosen.path, {chosen.input_name: shape}), profile)


@cache
def expected_outputs(name: str, batch: int) -> list[tuple[dict[str, Array], list[Array]]]:
    """Inputs of ``int8_graph``, and what the interpreter computes of them."""
    graph, chosen = int8_graph(name, batch), network(name)
    starts = range(0, 3 * batch, batch)
    inputs = [{chosen.input_name: chosen.images[at : at + batch]} for at in starts]
    return [(feeds, qg.interpret(graph, feeds)) for feeds in inputs]


def assert_equal_outputs(model: qg.CompiledModel, name: str, batch: int = 1) -> None:
    """Each output of a compiled ``int8_graph`` is the interpreter's, bit for bit."""
    for feeds, expected in expected_outputs(name, batch):
        for actual, value in zip(model.run(None, feeds), expected, strict=True):
            np.testing.assert_array_equal(actual, value)

"""``torch.compile``: the entry point of quantglow, and graphs that threads share.

Where PyTorch is absent, the module is imported on a stand-in; ``tests/frameworks`` has the rest.
"""

from __future__ import annotations

import ast
import sys
import threading
import tomllib
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from quantglow.support.errors import ConversionError
from tests.unit.forking import exit_code_of_child

ROOT = Path(__file__).parents[2]
SECONDS = 60
X = np.float32([1, 2])
PACKAGE = (
    "torch",
    "torch.fx",
    "torch.export",
    "torch.export.graph_signature",
    "torch.nn",
    "torch.utils",
)


def test_the_entry_point_names_a_function_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module, _, name = project["entry-points"]["torch_dynamo_backends"]["quantglow"].partition(":")
    tree = ast.parse((ROOT / module.replace(".", "/")).with_suffix(".py").read_text())
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert [a.arg for a in functions[name].args.args] == ["graph_module", "example_inputs"]


class Anything(type):
    """Kind of classes that have every attribute."""

    def __getattr__(cls, name: str) -> Any:
        return attribute(name)


class StandIn(ModuleType):
    """A module that has every attribute."""

    def __getattr__(self, name: str) -> Any:
        return attribute(name)


def attribute(name: str) -> Any:
    """A new class."""
    if name.startswith("__"):
        raise AttributeError(name)
    return Anything(name, (), {})


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """``quantglow.torch_backend``, whose outputs are arrays and whose models are functions."""
    known = set(sys.modules)
    if is_absent := find_spec("torch") is None:
        for name in PACKAGE:
            monkeypatch.setitem(sys.modules, name, StandIn(name))
    module = import_module("quantglow.torch_backend")
    monkeypatch.setattr(module, "like", lambda node, array: array)
    monkeypatch.setattr(module, "compile", lambda model, **options: model)
    yield module
    for name in set(sys.modules) - known if is_absent else ():
        if name.startswith("quantglow."):
            del sys.modules[name]


def graph_of(backend: Any) -> Any:
    """A graph of one weight and one tensor, with one output."""
    module = SimpleNamespace(forward=lambda weight, x: ("eager", weight, x))
    graph = backend.GraphOnQuantglow(module, {}, False)
    outputs = SimpleNamespace(computed=["y"], gathered=lambda results, arguments: tuple(results))
    vars(graph)["interface"] = SimpleNamespace(frozen=[0], fed=[1]), outputs
    return graph


def test_a_child_forked_while_a_graph_is_converted_converts_it_itself(
    backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, weight = graph_of(backend), np.float32(3)
    begun, end = threading.Event(), threading.Event()
    caller = threading.Thread(target=graph, args=(weight, X))

    def converted(*arguments: Any) -> Callable[[Any], Any]:
        if threading.current_thread() is caller:
            begun.set()
            assert end.wait(SECONDS)
        return lambda x: 2 * x

    monkeypatch.setattr(backend, "onnx_of_graph", converted)
    caller.start()
    assert begun.wait(SECONDS)
    code = exit_code_of_child(
        lambda: np.array_equal(graph(weight, X)[0], 2 * X) and graph.conversions == 1
    )
    end.set()
    caller.join()
    assert (code, graph.conversions) == (0, 1)


class Weight:
    """A scalar that calls a function whenever it is compared."""

    ndim = 0

    def __init__(self, compared: Callable[[], object]) -> None:
        self.compared = compared

    def item(self) -> Weight:
        return self

    def __eq__(self, other: object) -> bool:
        self.compared()
        return isinstance(other, Weight)

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.filterwarnings("ignore:quantglow. a graph of torch.compile runs uncompiled")
def test_a_call_beside_one_that_gives_up_has_its_result(
    backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other call fails after this one saw that the graph is converted."""
    graph, actual = graph_of(backend), list[Any]()
    running, failing, fails = threading.Event(), threading.Event(), list[threading.Thread]()

    def run(x: Any) -> Any:
        if threading.current_thread() in fails:
            running.set()
            assert failing.wait(SECONDS)
            raise ConversionError("no memory")
        return 2 * x

    def compared() -> None:
        failing.set()
        fails[0].join(0.5)

    monkeypatch.setattr(backend, "onnx_of_graph", lambda *arguments: run)
    weight = Weight(compared)
    fails.append(threading.Thread(target=lambda: actual.append(graph(Weight(compared), X))))
    fails[0].start()
    assert running.wait(SECONDS)
    (ours,) = graph(weight, X)
    fails[0].join()
    np.testing.assert_array_equal(ours, 2 * X)
    assert (actual[0][0], graph.eager, graph.converted) == ("eager", True, None)

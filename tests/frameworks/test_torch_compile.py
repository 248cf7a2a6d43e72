"""``torch.compile(model, backend="quantglow")`` gives eager's results, or runs it and says why."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import quantglow as qg
from quantglow.torch_backend import MOST_WEIGHTS, GraphOnQuantglow, compiled_graph
from tests.frameworks.networks import digits, efficientnet_lite0, images

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("default")]

TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture(autouse=True)
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[GraphOnQuantglow]]:
    """The graphs that are compiled in a test, without gradients."""
    torch.compiler.reset()
    made: list[GraphOnQuantglow] = []
    begin = GraphOnQuantglow.__init__

    def noted(self: GraphOnQuantglow, *arguments: Any) -> None:
        begin(self, *arguments)
        made.append(self)

    monkeypatch.setattr(GraphOnQuantglow, "__init__", noted)
    with torch.no_grad():
        yield made


def compiled(model: Any, **options: Any) -> Any:
    return torch.compile(model, backend="quantglow", **options)


def test_torch_finds_the_backend_by_its_name() -> None:
    assert "quantglow" in torch.compiler.list_backends()


def test_a_real_network_gives_eagers_results(graphs: list[GraphOnQuantglow]) -> None:
    network, image = digits(), images(count=8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = compiled(network)(image)
    torch.testing.assert_close(found, network(image), **TOLERANCE)
    assert [graph.eager for graph in graphs] == [False]


def test_a_network_of_fifty_layers_gives_eagers_results() -> None:
    network, image = efficientnet_lite0(), torch.rand(2, 3, 224, 224)
    wanted = network(image)
    torch.testing.assert_close(compiled(network)(image), wanted, **TOLERANCE)
    own = qg.compile(network, samples=[image[:1]])(image)
    torch.testing.assert_close(torch.from_numpy(own), wanted, **TOLERANCE)


def test_batches_of_other_sizes_need_one_more_graph(graphs: list[GraphOnQuantglow]) -> None:
    network = digits()
    model = compiled(network)
    for count in (2, 3, 5, 8):
        torch.testing.assert_close(
            model(images(count=count)), network(images(count=count)), **TOLERANCE
        )
    assert [graph.conversions for graph in graphs] == [1, 1]
    assert not any(graph.eager for graph in graphs)


class Several(torch.nn.Module):
    """Results of several kinds: tensors, an argument, a constant, a size, one of them twice."""

    def forward(self, x: Any, y: Any) -> Any:
        total = x + y
        return {"total": total, "same": total, "x": x, "none": None, "rows": x.shape[0] * 2}


@pytest.mark.parametrize("dynamic", [False, True])
def test_results_of_several_kinds(dynamic: bool, graphs: list[GraphOnQuantglow]) -> None:
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    found = compiled(Several(), dynamic=dynamic)(x, y)
    torch.testing.assert_close(found["total"], x + y)
    assert found["same"] is found["total"]
    assert found["x"] is x
    assert (found["none"], found["rows"]) == (None, 6)
    assert not any(graph.eager for graph in graphs)


class Broken(torch.nn.Module):
    """Two graphs, between which Python looks at values."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.first(x))
        if x.sum().item() > 1e9:
            return x
        return self.second(x)


def test_graph_breaks_make_several_graphs(graphs: list[GraphOnQuantglow]) -> None:
    model, x = Broken().eval(), torch.randn(3, 4)
    torch.testing.assert_close(compiled(model)(x), model(x), **TOLERANCE)
    assert len(graphs) == 2
    assert not any(graph.eager for graph in graphs)


def test_new_weights_are_seen(graphs: list[GraphOnQuantglow]) -> None:
    layer, x = torch.nn.Linear(4, 2).eval(), torch.randn(3, 4)
    model = compiled(layer)
    model(x)
    layer.weight.mul_(2)
    torch.testing.assert_close(model(x), layer(x), **TOLERANCE)
    layer.weight.data = torch.ones(2, 4)
    torch.testing.assert_close(model(x), layer(x), **TOLERANCE)
    assert [graph.conversions for graph in graphs] == [3]


def test_weights_that_change_at_every_call_stay_with_torch() -> None:
    layer, x = torch.nn.Linear(4, 2).eval(), torch.randn(3, 4)
    model = compiled(layer)

    def changed() -> None:
        layer.weight.mul_(2)
        torch.testing.assert_close(model(x), layer(x), **TOLERANCE)

    for _ in range(MOST_WEIGHTS):
        changed()
    with pytest.warns(RuntimeWarning, match="weights change from call to call"):
        changed()


def test_gradients_stay_with_torch() -> None:
    layer, x = torch.nn.Linear(4, 2).eval(), torch.randn(3, 4)
    with torch.enable_grad():
        with pytest.warns(RuntimeWarning, match=r"gradients are enabled.*torch\.no_grad"):
            result = compiled(layer)(x)
        result.sum().backward()
    assert layer.weight.grad is not None


class InPlace(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        x.add_(1)
        return x * 2


class Random(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return torch.nn.functional.dropout(x, 0.5, True) + 1


class Counting(torch.nn.Module):
    def forward(self, x: Any, times: int) -> Any:
        return x * times


class Unwritten(torch.nn.Module):
    """An operator that has no ONNX form."""

    def forward(self, x: Any) -> Any:
        return torch.special.bessel_j0(x)


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (InPlace(), "changes a tensor in place"),
        (Random(), "draws random numbers"),
        (Unwritten(), "bessel_j0"),
    ],
    ids=["in-place", "random", "unwritten"],
)
def test_other_graphs_run_as_they_are_with_one_warning(module: Any, reason: str) -> None:
    model, x = compiled(module), torch.randn(3, 4)
    given = x.clone()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            torch.manual_seed(0)
            found = model(x)
    ours = [str(w.message) for w in caught if "quantglow" in str(w.message)]
    assert len(ours) == 1
    assert reason in ours[0]
    for _ in range(3):
        torch.manual_seed(0)
        wanted = module(given)
    torch.testing.assert_close(found, wanted)


def test_integers_that_are_no_sizes_stay_with_torch() -> None:
    model, x = compiled(Counting(), dynamic=True), torch.randn(3, 4)
    with pytest.warns(RuntimeWarning, match="is the size of no tensor"):
        torch.testing.assert_close(model(x, 3), x * 3)


def test_options_are_those_of_compile() -> None:
    layer, x = torch.nn.Linear(4, 2).eval(), torch.randn(3, 4)
    found = compiled(layer, options={"num_threads": 1})(x)
    torch.testing.assert_close(found, layer(x), **TOLERANCE)
    with pytest.raises(Exception, match=r"options has \['threads'\]"):
        compiled(copy.deepcopy(layer), options={"threads": 1})(x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_results_have_the_types_of_torch(dtype: Any, graphs: list[GraphOnQuantglow]) -> None:
    layer, x = torch.nn.Linear(4, 2).to(dtype).eval(), torch.randn(3, 4).to(dtype)
    torch.testing.assert_close(compiled(layer)(x), layer(x), rtol=0.02, atol=0.02)
    assert not any(graph.eager for graph in graphs)


def test_results_are_the_callers_own() -> None:
    layer, x = torch.nn.Linear(4, 2).eval(), torch.randn(3, 4)
    model = compiled(layer)
    first = model(x)
    kept = first.clone()
    model(x + 1)
    assert np.array_equal(first, kept)


def test_the_backend_is_a_function_of_graph_and_inputs() -> None:
    layer, x = torch.nn.Linear(4, 2).eval(), torch.randn(3, 4)
    model = torch.compile(layer, backend=compiled_graph)
    torch.testing.assert_close(model(x), layer(x), **TOLERANCE)

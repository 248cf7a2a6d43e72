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
    recorded: list[GraphOnQuantglow] = []
    begin = GraphOnQuantglow.__init__

    def noted(self: GraphOnQuantglow, *arguments: Any) -> None:
        begin(self, *arguments)
        recorded.append(self)

    monkeypatch.setattr(GraphOnQuantglow, "__init__", noted)
    with torch.no_grad():
        yield recorded


def compiled(model: Any, **options: Any) -> Any:
    return torch.compile(model, backend="quantglow", **options)


def test_torch_finds_the_backend_by_its_name() -> None:
    assert "quantglow" in torch.compiler.list_backends()


def test_a_real_network_gives_eagers_results(graphs: list[GraphOnQuantglow]) -> None:
    network, image = digits(), images(count=8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled_model = compiled(network)(image)
    torch.testing.assert_close(compiled_model, network(image), **TOLERANCE)
    assert [graph.eager for graph in graphs] == [False]


def test_a_network_of_fifty_layers_gives_eagers_results() -> None:
    network, image = efficientnet_lite0(), torch.rand(2, 3, 224, 224)
    expected = network(image)
    torch.testing.assert_close(compiled(network)(image), expected, **TOLERANCE)
    ours = qg.compile(network, samples=[image[:1]])(image)
    torch.testing.assert_close(torch.from_numpy(ours), expected, **TOLERANCE)


@pytest.mark.parametrize("name", ["vit", "bert", "t5_decoder", "rt_detr"])
def test_transformers_are_compiled(name: str, graphs: list[GraphOnQuantglow]) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    from tests.frameworks import transformers_networks

    torch.manual_seed(0)
    network, inputs = getattr(transformers_networks, name)()
    result, expected = compiled(network)(**inputs), network(**inputs)
    tensors = {k for k, value in expected.items() if isinstance(value, torch.Tensor)}
    for key in tensors:
        torch.testing.assert_close(result[key], expected[key], **TOLERANCE)
    assert tensors
    assert graphs
    assert not any(graph.eager for graph in graphs)


attention = torch.nn.functional.scaled_dot_product_attention

MASK = torch.tensor([[True, True, False], [False, True, False], [True, False, True]]).expand(
    4, 3, 3
)


class Applied(torch.nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


class Branches(torch.nn.Module):
    """Dropout in one of two branches, which draws where ``training``."""

    def __init__(self, training: bool) -> None:
        super().__init__()
        self.drops = training

    def forward(self, x: Any) -> Any:
        def dropped(x: Any) -> Any:
            return torch.nn.functional.dropout(x, 0.5, self.drops)

        return torch.cond(x.sum() > 1e9, lambda x: x + 1, dropped, (x,))


class Masked(torch.nn.Module):
    """One layer of an encoder with masks, which torch runs as one operator of its own."""

    def __init__(self, causal: bool, padded: bool, **options: Any) -> None:
        super().__init__()
        self.layer = torch.nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, **options)
        mask = torch.triu(torch.ones(3, 3, dtype=torch.bool), 1)
        padding = torch.arange(3)[None] > torch.tensor([2, 1, 2, 0])[:, None]
        self.masks = {"src_mask": mask} if causal else {}
        self.masks |= {"src_key_padding_mask": padding} if padded else {}

    def forward(self, x: Any) -> Any:
        return self.layer(x, **self.masks)


WITHOUT_NUMBERS = {
    "attention": Applied(lambda x: attention(x[None], x[None], x[None])),
    "attention-of-3": Applied(lambda x: attention(x, x, x, is_causal=True)),
    "attention-of-2": Applied(lambda x: attention(x[0], x[1], x[2], scale=0.1)),
    "attention-of-5": Applied(lambda x: attention(x[None, None], x, x, MASK)),
    "attention-of-3-in-groups": Applied(lambda x: attention(x, x[:2], x[:2], enable_gqa=True)),
    "attention-of-groups": Applied(
        lambda x: attention(x[None], x[None, :2], x[None, :2], enable_gqa=True)
    ),
    "encoder": Masked(causal=False, padded=False),
    "encoder-norm-first": Masked(causal=False, padded=False, norm_first=True, activation="gelu"),
    "encoder-causal": Masked(causal=True, padded=False),
    "encoder-padded": Masked(causal=False, padded=True),
    "encoder-causal-padded": Masked(causal=True, padded=True),
    "dropout": torch.nn.Dropout(0.5),
    "dropout-of-0": Applied(lambda x: torch.nn.functional.dropout(x, 0.0, True)),
    "alpha-dropout": torch.nn.AlphaDropout(0.5),
    "rrelu": torch.nn.RReLU(),
    "branches": Branches(training=False),
}
"""Random operators whose arguments say that no number is drawn."""


@pytest.mark.parametrize("name", WITHOUT_NUMBERS)
def test_random_operators_that_draw_nothing_are_compiled(
    name: str, graphs: list[GraphOnQuantglow]
) -> None:
    module, x = WITHOUT_NUMBERS[name].eval(), torch.randn(4, 3, 4)
    torch.testing.assert_close(compiled(module)(x), module(x), **TOLERANCE)
    assert [graph.eager for graph in graphs] == [False]


@pytest.mark.parametrize(
    "module",
    [
        Applied(lambda x: attention(x[None], x[None], x[None], dropout_p=0.5)),
        Applied(lambda x: torch.nn.functional.rrelu(x, training=True)),
        Applied(lambda x: x + torch.rand_like(x)),
        Branches(training=True),
    ],
    ids=["attention", "rrelu", "rand", "branches"],
)
def test_random_operators_that_draw_stay_with_torch(module: Any) -> None:
    with pytest.warns(RuntimeWarning, match="draws random numbers"):
        compiled(module)(torch.randn(4, 3, 4))


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
    compiled_model = compiled(Several(), dynamic=dynamic)(x, y)
    torch.testing.assert_close(compiled_model["total"], x + y)
    assert compiled_model["same"] is compiled_model["total"]
    assert compiled_model["x"] is x
    assert (compiled_model["none"], compiled_model["rows"]) == (None, 6)
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
    inputs = x.clone()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            torch.manual_seed(0)
            network = model(x)
    ours = [str(w.message) for w in caught if "quantglow" in str(w.message)]
    assert len(ours) == 1
    assert reason in ours[0]
    for _ in range(3):
        torch.manual_seed(0)
        expected = module(inputs)
    torch.testing.assert_close(network, expected)


def test_integers_that_are_no_sizes_stay_with_torch() -> None:
    model, x = compiled(Counting(), dynamic=True), torch.randn(3, 4)
    with pytest.warns(RuntimeWarning, match="is the size of no tensor"):
        torch.testing.assert_close(model(x, 3), x * 3)


def test_options_are_those_of_compile() -> None:
    layer, x = torch.nn.Linear(4, 2).eval(), torch.randn(3, 4)
    compiled_model = compiled(layer, options={"num_threads": 1})(x)
    torch.testing.assert_close(compiled_model, layer(x), **TOLERANCE)
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

"""Models that PyTorch quantized (PT2E) keep their rounding points: int8 here, within one step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import quantglow as qg
from quantglow.interpreter import interpret
from quantglow.ir.graph.graph import Graph
from quantglow.ir.ops.convolution import Conv, Gemm
from quantglow.torch_backend import GraphOnQuantglow
from tests.frameworks.networks import digits, images

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")
quantize_pt2e = pytest.importorskip(
    "torchao.quantization.pt2e.quantize_pt2e", reason="torchao is not installed"
)
pt2e = pytest.importorskip("torchao.quantization.pt2e", reason="torchao is not installed")
x86 = pytest.importorskip("torchao.quantization.pt2e.quantizer.x86_inductor_quantizer")

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("default")]

Point = tuple[np.float32, int]
"""A rounding point: its scale, and the number of integers."""

Values = Mapping[Point, Any]


def quantized_by_torch(module: Any, samples: Any, trained: bool = False, **config: Any) -> Any:
    """The module with Quantize and Dequantize of torch's own."""
    inputs = (samples[:2].clone(),)
    exported = torch.export.export(module, inputs, dynamic_shapes=({0: torch.export.Dim("n")},))
    ours = x86.get_default_x86_inductor_quantization_config(is_qat=trained, **config)
    prepare = quantize_pt2e.prepare_qat_pt2e if trained else quantize_pt2e.prepare_pt2e
    prepared = prepare(exported.module(), x86.X86InductorQuantizer().set_global(ours))
    prepared(samples)
    return quantize_pt2e.convert_pt2e(prepared)


class Integers(torch.fx.Interpreter):
    """Runs a graph, and keeps what each Quantize gives, less its zero point."""

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self.steps: dict[Point, Any] = {}

    def run_node(self, n: Any) -> Any:
        result = super().run_node(n)
        if n.target is torch.ops.quantized_decomposed.quantize_per_tensor.default:
            steps = result.numpy().astype(np.int32) - n.args[2]
            self.steps[np.float32(n.args[1]), steps.size] = steps
        return result


def integers_of(module: Any, image: Any) -> Values:
    """Torch's integers at each of its rounding points."""
    runner = Integers(module)
    runner.run(image)
    return runner.steps


def our_integers(graph: Graph, image: Any) -> Values:
    """The integers of every int8 value, less their zero points, in torch's layout; of values of
    one rounding point the first."""
    actual: dict[Point, Any] = {}

    def listen(node: Any, value: Any) -> None:
        quant = node.type.quant
        if quant is not None and quant.axis is None:
            steps = value.astype(np.int32) - quant.zero_point
            is_nhwc = steps.ndim == 4 and steps.shape != image.shape
            known = np.moveaxis(steps, -1, 1) if is_nhwc else steps
            actual.setdefault((np.float32(quant.scale), steps.size), known)

    interpret(graph, {graph.inputs[0].name: image.numpy()}, [listen])
    return actual


def steps_apart(module: Any, graph: Graph, image: Any) -> dict[Point, int]:
    """Largest difference of integers at each of torch's rounding points."""
    theirs, ours = integers_of(module, image), our_integers(graph, image)
    assert ours.keys() >= theirs.keys()
    return {
        point: int(np.abs(ours[point].reshape(-1) - steps.reshape(-1)).max())
        for point, steps in theirs.items()
    }


class Residual(torch.nn.Module):
    """Convolutions joined by an Add, a mean and a product: two branches meet."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.second = torch.nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.last = torch.nn.Linear(8, 5)

    def forward(self, image: Any) -> Any:
        x = torch.relu(self.first(image))
        x = torch.relu(self.second(x) + x)
        return self.last(torch.nn.functional.adaptive_avg_pool2d(x, 1).flatten(1))


def test_every_rounding_point_of_a_real_network_is_within_one_step() -> None:
    module = quantized_by_torch(digits(), images("calibration_images", 60))
    graph = qg.import_model(module, {"image": (1, 1, 28, 28)}, samples=[images(count=1)])
    for image in images(count=20).split(1):
        apart = steps_apart(module, graph, image)
        assert len(apart) >= 4
        assert max(apart.values()) <= 1


def test_no_product_of_a_real_network_is_float() -> None:
    module = quantized_by_torch(digits(), images("calibration_images", 60))
    compiled = qg.compile(module, samples=[images(count=1)])
    products = [node for node in compiled.graph.nodes if isinstance(node, Conv | Gemm)]
    assert [node.x.type.quant is not None for node in products] == [True] * 4


def test_a_real_network_answers_as_torchs_own() -> None:
    module, image = quantized_by_torch(digits(), images("calibration_images", 60)), images()
    compiled = qg.compile(module, samples=[images(count=1)])
    actual, expected = compiled(image), module(image).detach().numpy()
    assert np.abs(actual - expected).max() < 0.01 * np.abs(expected).max()
    assert np.mean(actual.argmax(1) == expected.argmax(1)) >= 0.995


@pytest.mark.parametrize("trained", [False, True], ids=["calibrated", "trained"])
def test_branches_meet_at_torchs_rounding_points(trained: bool) -> None:
    torch.manual_seed(1)
    image = torch.randn(16, 3, 8, 8)
    module = quantized_by_torch(Residual().eval(), image, trained)
    if trained:
        pt2e.move_exported_model_to_eval(module)
    graph = qg.import_model(module, {"image": (1, 3, 8, 8)}, samples=[image[:1]])
    for one in image.split(1):
        apart = steps_apart(module, graph, one)
        assert len(apart) >= 3
        assert max(apart.values()) <= 1


def test_torch_compile_runs_quantized_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    module = quantized_by_torch(digits(), images("calibration_images", 60))
    recorded: list[GraphOnQuantglow] = []
    begin = GraphOnQuantglow.__init__

    def noted(self: GraphOnQuantglow, *arguments: Any) -> None:
        begin(self, *arguments)
        recorded.append(self)

    monkeypatch.setattr(GraphOnQuantglow, "__init__", noted)
    torch.compiler.reset()
    image = images(count=9)
    with torch.no_grad():
        actual, expected = torch.compile(module, backend="quantglow")(image), module(image)
    assert float((actual - expected).abs().max()) < 0.01 * float(expected.abs().max())
    (graph,) = recorded
    assert graph.converted is not None
    nodes = graph.converted[1].graph.nodes
    assert sum(isinstance(n, Conv | Gemm) and n.x.type.quant is not None for n in nodes) == 4


def test_ranges_that_torch_chooses_at_run_time_are_refused_by_name() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    quantized = quantized_by_torch(module.eval(), torch.randn(8, 16), is_dynamic=True)
    with pytest.raises(qg.ConversionError, match="choose_qparams"):
        qg.compile(quantized, samples=[torch.randn(8, 16)])

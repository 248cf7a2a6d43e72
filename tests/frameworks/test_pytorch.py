"""PyTorch modules and exported programs in: named as in ``forward``, batches of any size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantglow as qg
from quantglow.importer.torch import samples as pytorch_calls
from quantglow.support.arrays import array_of_tensor
from tests.frameworks.networks import digits, images, labels
from tests.support.small_network import small_model

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("default")]

TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}
"""float32 sums in another order."""


def rows(image: Any) -> list[Any]:
    """Samples of one image each."""
    return list(image.split(1))


def of(tensor: Any) -> Any:
    return tensor.detach().numpy()


class Pair(torch.nn.Module):
    """Two arguments, one of which may be left out, and a dict of results."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(6, 4)

    def forward(self, left: Any, right: Any = None, scale: float = 1.0) -> Any:
        both = left if right is None else left + right
        return {"scores": self.linear(both) * scale, "total": both.sum(1)}


class Squeezed(torch.nn.Module):
    """A module that does something else with one row: no batch is free."""

    def forward(self, x: Any) -> Any:
        return x * 2 if x.shape[0] == 1 else x + 1


class Branching(torch.nn.Module):
    """A branch on values, which ``torch.export`` refuses."""

    def forward(self, x: Any) -> Any:
        return x if x.sum() > 0 else x * 2


class OwnCache:
    """No tensor, and nothing that ``torch.export`` can look into."""


class Caching(torch.nn.Module):
    """A module that gives a cache beside its output, as those of transformers do."""

    def forward(self, x: Any) -> Any:
        return x * 2, OwnCache()


class Counter(torch.nn.Module):
    """A module that counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Any) -> Any:
        self.calls += 1
        return x + self.calls


def test_a_real_network_becomes_int8_and_keeps_its_answers() -> None:
    network, image = digits(), images()
    compiled = qg.quantize_and_compile(
        network, rows(images("calibration_images", 60)), progress=False
    )
    answers = [np.argmax(compiled(one)) for one in image.split(1)]
    right = np.argmax(of(network(image)), 1) == labels()
    assert np.mean(answers == labels()) >= right.mean() - 0.01
    assert compiled.get_inputs()[0].name == "image"


def test_float_results_are_those_of_eager_at_every_batch() -> None:
    network, compiled = digits(), qg.compile(digits(), samples=rows(images(count=1)))
    for count in (1, 2, 7):
        image = images(count=count)
        np.testing.assert_allclose(compiled(image), of(network(image)), **TOLERANCE)


def test_tensors_are_fed_without_a_copy() -> None:
    tensor = torch.ones(2, 3, requires_grad=True)
    assert np.shares_memory(array_of_tensor(tensor), of(tensor))


def test_bfloat16_comes_and_goes() -> None:
    module, x = torch.nn.Linear(6, 4).to(torch.bfloat16).eval(), torch.randn(3, 6)
    compiled = qg.compile(module, samples=[x.to(torch.bfloat16)])
    actual, expected = compiled(x.to(torch.bfloat16)), module(x.to(torch.bfloat16)).float()
    np.testing.assert_allclose(actual.astype(np.float32), of(expected), rtol=0.02, atol=0.02)


BFLOAT16 = torch.randn(12, 1, 2, 6, 6, generator=torch.Generator().manual_seed(0)).to(
    torch.bfloat16
)


@pytest.mark.parametrize(
    "samples",
    [
        list(BFLOAT16),
        BFLOAT16[:, 0],
        {"x": BFLOAT16[:, 0]},
        [{"x": tensor} for tensor in BFLOAT16],
        [(tensor, torch.tensor([1])) for tensor in BFLOAT16],
    ],
    ids=["list", "one tensor", "one dict", "dicts", "with labels"],
)
def test_bfloat16_samples_calibrate_as_the_same_numbers_in_float32(samples: Any) -> None:
    """Its numbers are numbers of float32."""
    ranges = qg.profile(small_model(), samples, progress=False).histograms
    profiled = qg.profile(small_model(), of(BFLOAT16[:, 0].float()), progress=False).histograms
    assert {name: str(value) for name, value in ranges.items()} == {
        name: str(value) for name, value in profiled.items()
    }


@pytest.mark.parametrize("samples", [list(BFLOAT16), BFLOAT16[:, 0]], ids=["list", "one tensor"])
def test_a_module_of_bfloat16_is_calibrated(samples: Any) -> None:
    layers = torch.nn.Conv2d(2, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(64, 3)
    module = torch.nn.Sequential(*layers).to(torch.bfloat16).eval()
    options = {"progress": False, "effort": "fast", "num_threads": 1}
    compiled = qg.quantize_and_compile(module, samples, **options)
    assert compiled.get_inputs()[0].type == "tensor(bfloat16)"
    actual, expected = compiled(BFLOAT16[0]), module(BFLOAT16[0])
    np.testing.assert_allclose(actual.astype(np.float32), of(expected.float()), atol=0.1)
    assert qg.bisect(module, samples).stage == ""


@pytest.mark.parametrize(
    "sample",
    [
        (torch.ones(3, 6), torch.ones(3, 6)),
        {"right": torch.ones(3, 6), "left": torch.ones(3, 6)},
        (np.ones((3, 6), np.float32), np.ones((3, 6), np.float32)),
    ],
    ids=["tuple", "dict", "arrays"],
)
def test_samples_are_calls_of_forward(sample: Any) -> None:
    module = Pair().eval()
    compiled = qg.compile(module, samples=[sample])
    assert [i.name for i in compiled.get_inputs()] == ["left", "right"]
    assert [o.name for o in compiled.get_outputs()] == ["scores", "total"]
    left, right = torch.randn(5, 6), torch.randn(5, 6)
    expected = module(left, right)
    for value, name in zip(compiled(left, right=right), expected, strict=True):
        np.testing.assert_allclose(value, of(expected[name]), **TOLERANCE)


def test_constants_of_a_sample_are_constants_of_the_model() -> None:
    samples = [{"left": torch.randn(2, 6), "scale": 3.0} for _ in range(4)]
    profile = qg.profile(Pair().eval(), samples, progress=False)
    assert profile.samples == 8


def test_another_constant_is_refused() -> None:
    samples = [{"left": torch.randn(2, 6), "scale": scale} for scale in (3.0, 4.0)]
    with pytest.raises(qg.CalibrationError, match=r"constant 4\.0 where the first one has 3\.0"):
        qg.profile(Pair().eval(), samples, progress=False)


def test_samples_that_do_not_fit_forward_are_refused() -> None:
    with pytest.raises(qg.CalibrationError, match=r"does not fit forward.*without labels"):
        qg.compile(Pair().eval(), samples=[{"images": torch.ones(1, 6)}])


class OfAnyLength(torch.nn.Module):
    """x [batch, 3, length] -> five scores."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.linear = torch.nn.Conv1d(3, 8, 3, padding=1), torch.nn.Linear(8, 5)

    def forward(self, x: Any) -> Any:
        return self.linear(torch.relu(self.conv(x)).mean(-1))


LABELED = {
    "loader": torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.randn(24, 3, 16), torch.randint(0, 5, (24,))),
        batch_size=4,
    ),
    "tuples": [(torch.randn(1, 3, 16), n % 5) for n in range(12)],
    "lists": [[torch.randn(2, 3, 16), torch.tensor([n % 5, 0])] for n in range(12)],
    "dicts": [{"x": torch.randn(1, 3, 16), "labels": n % 5} for n in range(12)],
}
"""Samples with labels, in every form of docs/how_to/data.md that a module takes."""


@pytest.mark.parametrize("form", LABELED)
def test_labels_are_left_out_of_calls_and_validate(form: str) -> None:
    data = LABELED[form]
    options: dict[str, Any] = {"validation_data": data, "progress": False, "effort": "fast"}
    report = qg.quantize_and_compile(OfAnyLength().eval(), data, **options).report
    assert isinstance(report, qg.Report)
    assert report.right is not None and report.right.labels in (12, 24)


LENGTHS = (16, 24, 9, 16) * 3


class OfLengths(torch.utils.data.Dataset):
    """Samples of different lengths, with labels."""

    def __len__(self) -> int:
        return len(LENGTHS)

    def __getitem__(self, index: int) -> Any:
        return torch.randn(3, LENGTHS[index], generator=torch.manual_seed(index)), index % 5


OF_LENGTHS: dict[str, Any] = {
    "list": lambda: [x[None] for x, _ in map(OfLengths().__getitem__, range(12))],
    "loader": lambda: torch.utils.data.DataLoader(OfLengths()),
    "iterator": lambda: (x[None] for x, _ in map(OfLengths().__getitem__, range(12))),
    "dataset": lambda: [{"x": x[None].numpy()} for x, _ in map(OfLengths().__getitem__, range(12))],
}
"""Samples whose lengths differ, in every form of docs/how_to/data.md that a module takes."""


@pytest.mark.parametrize("form", OF_LENGTHS)
def test_samples_of_different_shapes_leave_their_axes_free(form: str) -> None:
    module = OfAnyLength().eval()
    compiled = qg.compile(module, samples=OF_LENGTHS[form]())
    for shape in ((1, 3, 16), (4, 3, 50), (2, 3, 7)):
        x = torch.randn(shape)
        np.testing.assert_allclose(compiled(x), of(module(x)), **TOLERANCE)
    data = OF_LENGTHS[form]()
    assert qg.quantize_and_compile(module, data, progress=False, effort="fast").report.layers


def test_a_loader_is_read_once_for_shapes_and_samples() -> None:
    reads = []

    class Counting(OfLengths):
        def __getitem__(self, index: int) -> Any:
            reads.append(index)
            return super().__getitem__(index)

    loader = torch.utils.data.DataLoader(Counting())
    assert qg.profile(OfAnyLength().eval(), loader, progress=False).samples == len(LENGTHS)
    assert sorted(reads) == [*range(len(LENGTHS))]


def test_samples_beyond_those_looked_at_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pytorch_calls, "MAX_AHEAD_NBYTES", 1)
    loader = torch.utils.data.DataLoader(OfLengths(), batch_sampler=[[n] for n in (0, 3, 4, 7)])
    assert qg.profile(OfAnyLength().eval(), loader, progress=False).samples == 4


def test_a_shape_that_comes_late_is_an_error_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pytorch_calls, "MAX_AHEAD", 1)
    loader = torch.utils.data.DataLoader(OfLengths())
    with pytest.raises(qg.CalibrationError, match=r"sample 1.*Remedy"):
        qg.profile(OfAnyLength().eval(), loader, progress=False)


def test_a_folder_of_images_is_data_of_a_module(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    for index in range(12):
        (folder := tmp_path / "ab"[index % 2]).mkdir(exist_ok=True)
        pixels = np.random.default_rng(index).integers(0, 256, (16, 16, 3))
        image.fromarray(pixels.astype(np.uint8)).save(folder / f"{index}.png")
    images = qg.data.ImageFolder(tmp_path, "imagenet:8", labels=True)
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 2)).eval()
    options: dict[str, Any] = {"validation_data": images, "progress": False, "effort": "fast"}
    report = qg.quantize_and_compile(module, images, **options).report
    assert isinstance(report, qg.Report)
    assert report.right is not None and report.right.labels == 12


def test_one_tensor_holds_all_samples() -> None:
    profile = qg.profile(Pair().eval(), torch.randn(9, 6), progress=False)
    assert profile.samples == 9


def test_an_iterator_loses_no_sample() -> None:
    profile = qg.profile(Pair().eval(), (torch.randn(1, 6) for _ in range(5)), progress=False)
    assert profile.samples == 5


def test_a_module_that_looks_at_its_batch_has_one_shape() -> None:
    compiled = qg.compile(Squeezed().eval(), samples=[torch.zeros(1, 3)])
    assert compiled.get_inputs()[0].shape == [1, 3]
    np.testing.assert_array_equal(compiled(torch.ones(1, 3)), np.full((1, 3), 2, np.float32))


def test_training_mode_is_refused() -> None:
    with pytest.raises(qg.ConversionError, match=r"Pair is in training mode.*module\.eval\(\)"):
        qg.compile(Pair(), samples=[torch.ones(1, 6)])


def test_a_graph_exported_in_training_mode_is_refused() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Dropout())
    graph = torch.export.export(module, (torch.ones(2, 6),)).module()
    with pytest.raises(qg.ConversionError, match="training mode"):
        qg.compile(graph, samples=[torch.ones(2, 6)])


def test_modules_that_export_refuses_are_refused_with_the_cause() -> None:
    with pytest.raises(qg.ConversionError, match=r"refuses Branching: .*data-dependent"):
        qg.compile(Branching().eval(), samples=[torch.ones(1, 6)])


def test_the_remedy_for_a_cache_is_to_leave_it_out() -> None:
    with pytest.raises(qg.ConversionError, match=r"OwnCache'> in output.*use_cache=False"):
        qg.compile(Caching().eval(), samples=[torch.ones(1, 6)])


def test_a_module_that_keeps_a_state_is_refused() -> None:
    with pytest.raises(qg.ConversionError, match="changes the buffer 'calls'"):
        qg.compile(Counter().eval(), samples=[torch.ones(1, 6)])


def test_a_module_needs_samples() -> None:
    with pytest.raises(qg.ConversionError, match="needs a sample of the inputs of Pair"):
        qg.import_model(Pair().eval())


def test_an_exported_program_needs_none() -> None:
    module = Pair().eval()
    dims = {"left": {0: torch.export.Dim("rows")}}
    program = torch.export.export(module, (torch.ones(2, 6),), dynamic_shapes=dims)
    compiled = qg.compile(program)
    left = torch.randn(7, 6)
    np.testing.assert_allclose(compiled(left)[0], of(module(left)["scores"]), **TOLERANCE)


def test_the_exporters_are_silent(capfd: pytest.CaptureFixture[str], recwarn: Any) -> None:
    qg.compile(Pair().eval(), samples=[torch.ones(1, 6)])
    with pytest.raises(qg.ConversionError):
        qg.compile(Branching().eval(), samples=[torch.ones(1, 6)])
    assert capfd.readouterr() == ("", "")
    assert list(recwarn) == []


def test_other_calls_take_modules() -> None:
    module, samples = digits(), rows(images("calibration_images", 8))
    assert not qg.bisect(module, samples).stage
    profile = qg.profile(module, samples, progress=False)
    graph = qg.import_model(module, {"image": (1, 1, 28, 28)}, samples=samples)
    int8 = qg.quantize(graph, profile)
    assert any(node.type.quant for node in int8.nodes)
    assert (
        qg.quantize_and_compile(module, samples, effort="fast", progress=False).profile == profile
    )

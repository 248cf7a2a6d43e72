"""``before`` and ``after``: a model with steps is quantized, saved and bundled as any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.version_converter import convert_version

import quantglow as qg
from quantglow import steps
from quantglow.api.models.families import with_steps
from quantglow.evaluation.baselines.onnxruntime_quantizer import quantize_file
from quantglow.evaluation.metrics import sqnr_db
from quantglow.ir.ops import Quantize
from quantglow.ort.quantizer_input import quantizer_input
from quantglow.support.arrays import Array
from tests.support.small_network import small_model
from tests.unit.quantization.qdq.qdq_models import by_onnxruntime

BEFORE = [
    steps.ElementType("uint8"),
    steps.Layout("NHWC"),
    steps.Rescale(1 / 255),
    steps.Normalize((0.5, 0.4), (0.25, 0.2)),
]
AFTER = {"scores": [steps.Softmax(), steps.TopK(2)]}
OUTPUTS = ["scores", "features", "scores_indices"]


def images(count: int = 8) -> Array:
    return np.random.default_rng(5).integers(0, 256, (count, 6, 6, 2)).astype(np.uint8)


def prepared(x: Array) -> Array:
    scaled = x.astype(np.float32) * np.float32(1 / 255)
    mean, std = np.array([0.5, 0.4], np.float32), np.array([0.25, 0.2], np.float32)
    return np.ascontiguousarray(((scaled - mean) / std).transpose(0, 3, 1, 2))


@pytest.fixture(scope="module")
def compiled() -> Any:
    return qg.quantize_and_compile(
        small_model(), images(), num_threads=1, progress=False, before=BEFORE, after=AFTER
    )


@pytest.mark.slow
def test_images_go_in_and_classes_come_out(compiled: Any) -> None:
    (selected,) = compiled.get_inputs()
    assert (selected.shape, selected.type) == ([1, 6, 6, 2], "tensor(uint8)")
    assert [end.name for end in compiled.get_outputs()] == OUTPUTS


@pytest.mark.slow
def test_int8_results_are_those_of_the_model_fed_with_floats(compiled: Any) -> None:
    x = images()
    plain = qg.quantize_and_compile(
        small_model(), prepared(x), num_threads=1, progress=False, verify=False
    )
    whole = qg.quantize_and_compile(
        small_model(), x, num_threads=1, progress=False, verify=False, before=BEFORE
    )
    for image in x[:, None]:
        for item, other in zip(whole(image), plain(prepared(image)), strict=True):
            np.testing.assert_allclose(item, other, atol=0.06 * np.abs(other).max())


def test_int8_results_are_equal_in_all_forms(compiled: Any, tmp_path: Path) -> None:
    compiled.save(tmp_path / "model.qgm")
    loaded = qg.load(tmp_path / "model.qgm")
    reference = qg.compile(compiled.graph, backend="reference", num_threads=1)
    for image in images()[:, None]:
        results = qg.interpret(compiled.graph, {"x": image})
        for model in (compiled, loaded, reference):
            for item, right in zip(model(image), results, strict=True):
                np.testing.assert_allclose(item, right, rtol=1e-6)
    assert [e.name for e in loaded.get_outputs()] == OUTPUTS


@pytest.mark.slow
def test_bundles_take_bytes(compiled: Any, tmp_path: Path) -> None:
    compiled.export_bundle(tmp_path, name="net")
    header = (tmp_path / "net.h").read_text()
    assert "uint8_t" in header and "int64_t" in header


def test_scores_that_are_chosen_from_stay_float(compiled: Any) -> None:
    """TopK of int8 scores would find equal ones."""
    kinds = {node.name: node.type for node in compiled.graph.nodes}
    assert kinds["scores:Softmax"].quant is None
    assert kinds["scores:model"].quant is None


def test_images_are_rounded_once(compiled: Any) -> None:
    ops = [type(node).__name__ for node in compiled.graph.nodes if node.operands]
    assert ops[: ops.index("Quantize")] == ["Elementwise", "Add"]


def test_bytes_that_calibration_did_not_see_are_exact() -> None:
    """Without padding, the convolution takes scale and shift, and bytes have codes of their own."""
    model = small_model()
    model.graph.node[0].attribute[0].ints[:] = [0, 0, 0, 0]
    model.graph.initializer[2].CopyFrom(numpy_helper.from_array(np.ones((64, 3), np.float32), "w2"))
    model.graph.output[1].type.tensor_type.shape.dim[2].dim_value = 4
    model.graph.output[1].type.tensor_type.shape.dim[3].dim_value = 4
    compiled = qg.quantize_and_compile(
        model, images() // 4, num_threads=1, progress=False, verify=False, before=BEFORE
    )
    (first,) = [n for n in compiled.graph.nodes if isinstance(n, Quantize)]
    assert (first.type.quant.scales, first.type.quant.zero_points) == ((1.0,), (-128,))
    assert [type(node).__name__ for node in compiled.graph.nodes if node.operands][2] == "Conv"


@pytest.mark.parametrize(
    ("preparation", "zero_point"),
    [
        ([steps.Rescale(1 / 255)], -128),
        ([steps.Normalize(127, (58, 57))], -1),
        ([steps.Rescale(1 / 255), steps.Normalize(103 / 255, (0.25, 0.2))], -25),
    ],
    ids=["rescale", "deviations", "both"],
)
def test_padding_that_is_a_byte_leaves_bytes_exact(preparation: Any, zero_point: int) -> None:
    """Whatever calibration saw: here only dark pixels."""
    before = [*BEFORE[:2], *preparation]
    compiled = qg.quantize_and_compile(
        small_model(), images() // 4, num_threads=1, progress=False, verify=False, before=before
    )
    (first,) = [n for n in compiled.graph.nodes if isinstance(n, Quantize)]
    assert (first.type.quant.scales, first.type.quant.zero_points) == ((1.0,), (zero_point,))
    floats = qg.compile(small_model(), num_threads=1, before=before)
    actual, expected = (model(images()[:1] // 4)[1] for model in (compiled, floats))
    assert sqnr_db(expected, actual) > 30


def test_the_report_says_why_bytes_are_not_exact(compiled: Any) -> None:
    reasons = {layer.name: layer.reason for layer in compiled.report.layers}
    assert (
        "the padding of 'features' is the pixel 127.5, 102, which is no"
        in reasons["x:model:shifted"]
    )


@pytest.mark.slow
def test_antialiased_images_are_rounded_once() -> None:
    model = convert_version(small_model(), 18)
    before = [*BEFORE[:2], steps.Resize(6, 6, antialias=True), *BEFORE[2:]]
    photos = np.random.default_rng(3).integers(0, 256, (8, 17, 23, 2)).astype(np.uint8)
    compiled = qg.quantize_and_compile(
        model,
        photos,
        num_threads=1,
        progress=False,
        before=before,
        input_shapes={"x": (1, *photos.shape[1:])},
    )
    ops = [type(node).__name__ for node in compiled.graph.nodes if node.operands]
    first = ["Elementwise", "AntialiasedResize", "Add"]
    assert ops[: ops.index("Quantize")] == first
    assert compiled.report.outputs[0].sqnr_db > 30
    for photo in photos[:, None]:
        for item, right in zip(
            compiled(photo), qg.interpret(compiled.graph, {"x": photo}), strict=True
        ):
            np.testing.assert_allclose(item, right, rtol=1e-5, atol=0.06)


def test_indices_count_by_equal_answers_only(compiled: Any) -> None:
    actual = {output.name: output for output in compiled.report.outputs}
    assert actual["scores_indices"].is_integer
    assert actual["scores_indices"].top1_agreement is not None
    assert not actual["scores"].is_integer
    again = qg.Report.from_json(compiled.report.to_json())
    assert again.outputs == compiled.report.outputs


@pytest.mark.slow_variants
@pytest.mark.parametrize("last", [steps.TopK(2), steps.ArgMax(), steps.ArgMax(keepdims=True)])
def test_labels_are_compared_with_indices(last: steps.After) -> None:
    x = images(10)
    scores = qg.compile(small_model(), num_threads=1, before=BEFORE)
    labels = np.array([scores(image)[0].argmax() for image in x[:, None]])
    labels[0] = (labels[0] + 1) % 3
    compiled = qg.quantize_and_compile(
        small_model(),
        x,
        validation_data={"x": x, "labels": labels},
        num_threads=1,
        progress=False,
        before=BEFORE,
        after={"scores": [last]},
    )
    assert compiled.report.right is not None
    assert compiled.report.right.float_share == pytest.approx(0.9)


@pytest.mark.slow
def test_every_function_that_takes_a_model_takes_its_steps() -> None:
    model, data, inputs = small_model(), images(), {"before": BEFORE, "after": AFTER}
    assert "scores:Softmax" in qg.profile(model, data, progress=False, **inputs).histograms
    diagnosis = qg.diagnose(model, data, sensitivity=False, progress=False, **inputs)
    assert "scores:Softmax" in {layer.name for layer in diagnosis.layers}
    assert qg.bisect(model, data, **inputs).stage == ""


@pytest.mark.slow_variants
@pytest.mark.parametrize("antialias", [False, True])
def test_onnxruntimes_quantizer_takes_images_that_are_resized(
    antialias: bool, tmp_path: Path
) -> None:
    """It knows no sizes of some axes only."""
    before = [*BEFORE[:2], steps.Resize(6, 6, antialias=antialias), *BEFORE[2:]]
    model = with_steps(convert_version(small_model(), 18), before, None)
    photo = np.random.default_rng(3).integers(0, 256, (1, 9, 11, 2)).astype(np.uint8)
    source, target = tmp_path / "float.onnx", tmp_path / "int8.onnx"
    source.write_bytes(quantizer_input(model, {"x": photo.shape}).SerializeToString())
    quantize_file(source, target, [{"x": photo}])
    loaded = by_onnxruntime(onnx.load(target), {"x": photo}, optimized=True)
    compiled = qg.compile(model, num_threads=1).run(None, {"x": photo})
    assert sqnr_db(compiled[1], loaded[1]) > 20


def test_a_graph_gets_its_steps_from_import_model() -> None:
    graph = qg.import_model(small_model(), before=BEFORE)
    assert graph.inputs[0].type.shape == (1, 6, 6, 2)
    with pytest.raises(qg.OptionError, match="pass them to import_model"):
        qg.compile(graph, before=BEFORE)


def test_no_steps_change_nothing() -> None:
    plain = qg.import_model(small_model())
    assert str(qg.import_model(small_model(), before=[], after={"scores": []})) == str(plain)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: steps.ElementType("u8"), "ElementType must be one of"),
        (lambda: steps.Layout("NHWD"), "has other axes than the model's 'NCHW'"),
        (lambda: steps.Layout("xyz"), "letters of 'NCDHW'"),
        (lambda: steps.Layout("NHWW", "NCHW"), "has other axes"),
        (lambda: steps.Resize(0, 2), "Resize height must be at least 1"),
        (lambda: steps.Resize(2, 2, "cubic"), "Resize mode must be one of"),
        (lambda: steps.Resize(2, 2, antialias=1), "Resize antialias must be True or False"),
        (lambda: steps.Resize(2, 2, "nearest", True), "antialias is for mode 'linear'"),
        (lambda: steps.Rescale(float("inf")), "Rescale factor must be finite"),
        (lambda: steps.Normalize("a", 1), "Normalize mean takes numbers"),
        (lambda: steps.Normalize([], 1), "got none"),
        (lambda: steps.Normalize(0, (1, 0)), "std must not be 0"),
        (lambda: steps.TopK(0), "TopK k must be at least 1"),
        (lambda: steps.ArgMax(keepdims=1), "ArgMax keepdims must be True or False"),
        (lambda: steps.Softmax(1.5), "Softmax axis must be an integer"),
    ],
)
def test_steps_without_sense_are_refused(make: Any, message: str) -> None:
    with pytest.raises(qg.OptionError, match=message):
        make()


@pytest.mark.parametrize(
    "wrong", [1, "Rescale", [1], [steps.Softmax()], {1: []}, {"x": 1}, [steps.Layout("NHWC")] * 2]
)
def test_other_objects_than_steps_are_refused(wrong: Any) -> None:
    with pytest.raises(qg.OptionError, match=r"^before"):
        qg.compile(small_model(), before=wrong)

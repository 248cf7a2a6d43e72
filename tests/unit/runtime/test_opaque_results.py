"""Late results as opaque values: onnxruntime computes with them up to the next known shape."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

import quantglow as qg
from quantglow.ir.ops.external import External
from quantglow.ir.types import DType
from quantglow.ort.products import count_products
from quantglow.ort.session import Session
from quantglow.support.arrays import leaves
from tests.support.detector import LATE, SHAPE, SIZES, detector, free_detector
from tests.support.late_models import BUILDERS, STREAM, Feeds, LateModel
from tests.unit.importer.onnx.onnx_models import by_onnxruntime, floats
from tests.unit.runtime.saved.test_included_code import repeated_rows

pytestmark = pytest.mark.usefixtures("with_opaque_results")

KINDS = ("rows", "detector", "free detector", "crops", "loop", "pieces", "optional", "decoder")
"""Kinds with late values: of fixed shapes, of a free batch (rows), and of free shapes (the free
detector, and the decoder, whose late values are in the middle)."""

FLOAT, INT8 = 1e-4, 0.06
"""Error of an output, as a share of the largest value of onnxruntime's."""

each_kind = pytest.mark.parametrize("kind", KINDS)


def image_of_size(size: int, seed: int) -> Feeds:
    return {"x": floats(*SIZES[size % len(SIZES)], seed=seed)}


@cache
def late_model(kind: str) -> LateModel:
    """The model of a kind, and its samples."""
    if kind == "free detector":
        return LateModel(free_detector(), image_of_size)
    return BUILDERS[kind]()


@cache
def expected(kind: str) -> list[list[Any]]:
    """onnxruntime's outputs for each sample."""
    session = Session(late_model(kind).model.SerializeToString())
    return [session.run(feeds) for feeds in late_model(kind).distinct()]


@cache
def quantized(kind: str) -> Any:
    late = late_model(kind)
    return qg.quantize_and_compile(
        late.model, late.samples(9), num_threads=2, progress=False, effort="fast"
    )


def pairs(results: Sequence[Any], others: Sequence[Any]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The arrays of two models, whose shapes and types are equal."""
    for one, other in zip(leaves(list(results)), leaves(list(others)), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        yield one, other


def same(results: Sequence[Any], others: Sequence[Any]) -> None:
    """Equal bit for bit."""
    for one, other in pairs(results, others):
        np.testing.assert_array_equal(one, other)


def near(results: Sequence[Any], others: Sequence[Any], tolerance: float) -> None:
    for one, other in pairs(results, others):
        scale = float(np.abs(other).max(initial=0)) if other.dtype.kind == "f" else 0
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * scale)


# -- results


@pytest.mark.slow_variants(3)
@each_kind
def test_a_stream_gives_what_onnxruntime_gives(kind: str, tmp_path: Path) -> None:
    """On any number of threads, loaded before the first call and after it."""
    samples, results = late_model(kind).distinct(), expected(kind)
    compiled = qg.compile(late_model(kind).model, num_threads=1)
    assert isinstance(compiled, qg.CompiledModel)
    compiled.save(tmp_path / "new.qgm")
    models = [compiled, compiled.with_num_threads(2), qg.load(tmp_path / "new.qgm", num_threads=3)]
    for call, number in enumerate(STREAM):
        near(models[call % 3].run(None, samples[number]), results[number], FLOAT)
    compiled.save(tmp_path / "used.qgm")
    loaded = qg.load(tmp_path / "used.qgm", num_threads=1)
    for feeds in samples:
        same(loaded.run(None, feeds), compiled.run(None, feeds))


@pytest.mark.slow_variants(3)
@each_kind
def test_int8_results_are_the_same_bits_everywhere(kind: str, tmp_path: Path) -> None:
    """With other threads, loaded, saved again, side by side; and near those of float."""
    compiled = quantized(kind)
    compiled.save(tmp_path / "m.qgm")
    loaded = qg.load(tmp_path / "m.qgm", num_threads=3)
    loaded.save(tmp_path / "again.qgm")
    others = [compiled.with_num_threads(1), loaded, qg.load(tmp_path / "again.qgm", num_threads=2)]
    answers = [compiled.run_async(feeds) for feeds in late_model(kind).distinct()]
    for feeds, answer, exact in zip(
        late_model(kind).distinct(), answers, expected(kind), strict=True
    ):
        results = compiled.run(None, feeds)
        same(answer.result(60), results)
        for other in others:
            same(other.run(None, feeds), results)
        if kind != "free detector":  # its scores are too near each other for equal choices
            near(results, exact, INT8)


SCRIPT = """
import sys
import numpy as np
import quantglow as qg

model = qg.load(sys.argv[1], num_threads=3)
with np.load(sys.argv[2]) as arrays:
    for number in range(8):
        names = [info.name for info in model.get_inputs()]
        feeds = {name: arrays[f"{number} {name}"] for name in names}
        for position, array in enumerate(model.run(None, feeds)):
            np.testing.assert_array_equal(array, arrays[f"{number} {position}"], strict=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["detector", "rows", "decoder"])
def test_a_fresh_process_gives_the_same_bits(kind: str, tmp_path: Path) -> None:
    arrays = {}
    for number, feeds in enumerate(late_model(kind).distinct()):
        results = enumerate(quantized(kind).run(None, feeds))
        arrays |= {f"{number} {name}": array for name, array in (*feeds.items(), *results)}
    np.savez(tmp_path / "arrays.npz", **arrays)
    quantized(kind).save(tmp_path / "m.qgm")
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "m.qgm"), str(tmp_path / "arrays.npz")]
    subprocess.run(command, check=True, timeout=120)


def test_a_batch_gives_what_its_samples_give() -> None:
    samples = late_model("rows").distinct()
    for numbers in ((2,), (0, 2), (2, 2, 5), (0, 1, 2)):
        batch = {"x": np.concatenate([samples[number]["x"] for number in numbers])}
        alone = zip(*(quantized("rows").run(None, samples[n]) for n in numbers), strict=True)
        same(quantized("rows").run(None, batch), [np.concatenate(arrays) for arrays in alone])


def test_only_some_outputs_are_computed() -> None:
    compiled, x = qg.compile(detector()), floats(*SHAPE)
    f, sel, y = compiled(x)
    same(compiled.run(["y", "f"], {"x": x}), [y, f])
    same(compiled.run(["sel"], {"x": x}), [sel])


def test_values_of_inputs_decide_beside_late_shapes(tmp_path: Path) -> None:
    compiled = qg.compile(repeated_rows(), num_threads=2)
    calls = [{"x": floats(r, 4), "n": np.int32([n, 1])} for r, n in ((3, 2), (5, 1), (3, 4))]
    for feeds in calls:
        near(compiled.run(None, feeds), by_onnxruntime(repeated_rows(), feeds), FLOAT)
    compiled.save(tmp_path / "m.qgm")
    loaded = qg.load(tmp_path / "m.qgm", num_threads=2)
    for feeds in calls:
        same(loaded.run(None, feeds), compiled.run(None, feeds))


# -- ends


@each_kind
def test_inputs_and_outputs_are_those_of_the_model(kind: str, tmp_path: Path) -> None:
    session = Session(late_model(kind).model.SerializeToString())
    compiled = quantized(kind)
    compiled.save(tmp_path / "m.qgm")
    for model in (compiled, qg.load(tmp_path / "m.qgm"), qg.compile(late_model(kind).model)):
        ends = (model.get_inputs(), session.inputs), (model.get_outputs(), session.outputs)
        for ours, theirs in ends[: 1 if kind == "free detector" else 2]:
            assert [(i.name, i.shape, i.type) for i in ours] == [
                (i.name, i.shape, i.type) for i in theirs
            ]


@pytest.mark.parametrize("rows", [6, "N"])
def test_late_outputs_have_the_float_types_that_the_model_declares(
    rows: int | str, tmp_path: Path
) -> None:
    model = parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]> g
    (float16[{rows}, 4] x) => (float16[K, 4] y, double[K, 4] z, float[K, 4] u)
    <int64 first = {{0}}, float16 zero = {{0}}> {{
     r = Tanh(x)
     scores = Gather <axis = 1> (r, first)
     chosen = Greater(scores, zero)
     y = Compress <axis = 0> (r, chosen)
     u = Cast <to = 1> (y)
     wide = Cast <to = 11> (r)
     w = Exp(wide)
     z = Compress <axis = 0> (w, chosen)
    }}""")
    feeds = {"x": floats(6, 4).astype(np.float16)}
    compiled = qg.compile(model, num_threads=1)
    compiled.save(tmp_path / "m.qgm")
    int8 = qg.quantize_and_compile(model, [feeds] * 2, progress=False, num_threads=1)
    for each in (compiled, qg.load(tmp_path / "m.qgm"), int8):
        kinds = [info.type for info in each.get_outputs()]
        assert kinds == ["tensor(float16)", "tensor(double)", "tensor(float)"]
        near(each.run(None, feeds), by_onnxruntime(model, feeds), 1e-3)
    assert {output.name for output in int8.report.outputs} == {"y", "z", "u"}


@pytest.mark.parametrize("model", [detector(), free_detector()], ids=["fixed", "free"])
def test_wrong_feeds_are_typed_errors(model: onnx.ModelProto) -> None:
    compiled = qg.compile(model, num_threads=1)
    x = floats(*SHAPE)
    wrong = [{"x": x.astype(np.int32)}, {"x": x[0]}, {"x": floats(1, 4, 8, 8)}, {"z": x}, {}]
    wrong += [{"x": np.zeros((1, 3, 0, 8), np.float32)}]
    for feeds in wrong:
        with pytest.raises(qg.InputError):
            compiled.run(None, feeds)
    with pytest.raises(qg.InputError, match="unknown output"):
        compiled.run(["tiled"], {"x": x})


# -- the place of each node


@each_kind
def test_the_report_names_what_onnxruntime_runs(kind: str) -> None:
    """Each of it once, whatever is run; and outputs and products are all counted."""
    compiled, late = quantized(kind), late_model(kind)
    compiled.run(None, late.distinct()[0])
    report, nodes = compiled.report, compiled.graph.nodes
    reasons = {node.name: node.reason for node in nodes if isinstance(node, External)}
    assert {node.name: node.reason for node in report.fallback} == reasons
    assert len(report.fallback) == len(reasons)
    products = [layer for layer in report.layers if layer.op in ("Conv", "Gemm", "MatMul")]
    precisions = {(layer.name in reasons, layer.precision) for layer in products}
    assert (False, "int8") in precisions and precisions <= {(False, "int8"), (True, "float")}
    assert [output.name for output in report.outputs] == [o.name for o in late.model.graph.output]
    total = count_products(late.model.SerializeToString(), late.samples(1)[0])
    assert report.int8_share.total == pytest.approx(total, rel=0.01)


@pytest.mark.parametrize("is_free", [False, True], ids=["fixed", "free"])
def test_nodes_behind_a_late_shape_run_in_onnxruntime(is_free: bool, tmp_path: Path) -> None:
    compiled = qg.compile(free_detector() if is_free else detector(), num_threads=1)
    compiled(floats(*SHAPE))
    compiled.save(tmp_path / "m.qgm")
    loaded = qg.load(tmp_path / "m.qgm", num_threads=1)
    loaded(floats(*SHAPE))
    first, *others = (f"the shape of {name!r} is known when the model runs" for name in LATE[:-1])
    for model in (compiled, loaded):
        actual = {node.name: node.reason for node in model.report.fallback}
        assert tuple(actual) == LATE and "importer" in actual["sel"]
        assert list(actual.values())[1:] == [first, *others]
        assert first in str(model.report)
    graph = compiled.graph
    assert {n.name for n in graph.nodes if n.type.dtype is DType.OPAQUE} == {*LATE}
    assert sum(node.op == "Conv" for node in graph.nodes) == 1


def test_products_behind_the_next_known_shape_are_int8() -> None:
    (*_, last) = (node for node in quantized("rows").graph.nodes if node.op == "Conv")
    assert last.type.shape[-1] == 16 and last.operands[0].type.quant is not None


def test_included_code_runs(tmp_path: Path) -> None:
    compiled = quantized("detector")
    compiled.save(tmp_path / "m.qgm", include_code="native")
    loaded = qg.load(tmp_path / "m.qgm", num_threads=2, code="require")
    for feeds in late_model("detector").distinct():
        same(loaded.run(None, feeds), compiled.run(None, feeds))


# -- export


@pytest.mark.slow_variants(2)
@each_kind
def test_the_exported_model_agrees_in_onnxruntime(kind: str, tmp_path: Path) -> None:
    """Not optimized: onnxruntime's QLinearMatMul of no rows gives what its memory had before."""
    compiled = quantized(kind)
    compiled.export_onnx(tmp_path / "m.onnx")
    model = onnx.load(tmp_path / "m.onnx")
    if kind != "free detector":  # its late outputs have no shape
        onnx.checker.check_model(model, full_check=True)
    assert sum(node.op_type == "QuantizeLinear" for node in model.graph.node) > 1
    session = Session(model.SerializeToString(), optimize=False)
    for feeds in late_model(kind).distinct():
        results = session.run({name: feeds[name] for name in session.input_names})
        near(results, compiled.run(None, feeds), 0.01)


@pytest.mark.parametrize("partition", [False, True])
def test_a_bundle_has_no_opaque_values(partition: bool, tmp_path: Path) -> None:
    with pytest.raises(qg.BackendError, match="Remedy"):
        qg.compile(detector()).export_bundle(tmp_path / "bundle", partition=partition)
    assert not (tmp_path / "bundle").exists()


# -- accuracy control


def controlled(max_drop: float, **options: Any) -> qg.CompiledModel:
    samples = [floats(*SHAPE, seed=seed) for seed in range(3)]
    compiled = qg.quantize_and_compile(
        detector(), samples, max_drop=max_drop, verify=False, progress=False, **options
    )
    assert isinstance(compiled, qg.CompiledModel)
    return compiled


def test_a_contract_holds_for_outputs_of_late_shapes() -> None:
    counts = []
    for max_drop in (0.9, 0.0):
        nodes = controlled(max_drop).graph.nodes
        counts.append(sum(node.type.quant is not None for node in nodes))
    assert counts[0] > counts[1] == 0


def test_a_validation_function_gets_a_model_that_runs() -> None:
    lengths: list[int] = []

    def validation(model: Any) -> float:
        lengths.append(len(model(floats(*SHAPE))))
        return 1.0

    controlled(0.0, validation_fn=validation)
    assert lengths == [3] * 2


def test_the_best_model_of_a_broken_contract_runs() -> None:
    figures = itertools.chain([1.0], itertools.repeat(0.5))
    with pytest.raises(qg.AccuracyDropError) as caught:
        controlled(0.1, validation_fn=lambda model: next(figures))
    assert isinstance(caught.value.best, qg.CompiledModel)
    assert len(caught.value.best(floats(*SHAPE))) == 3


# -- profiles and tools


@pytest.mark.parametrize("wrap", [list, iter], ids=["list", "iterator"])
def test_a_profile_of_samples_is_that_of_what_is_computed_here(wrap: Any) -> None:
    samples = [floats(*shape, seed=seed) for seed in range(2) for shape in SIZES]
    profile = qg.profile(free_detector(), wrap(samples), progress=False)
    assert "scores" in profile and not {*LATE} & {*profile.histograms}
    compiled = qg.quantize_and_compile(free_detector(), profile, verify=False, progress=False)
    assert compiled.profile == profile
    assert [array.shape[1:] for array in compiled(samples[1])[1:]] == [(3,), (20, 6)]


def test_tools_take_such_models(tmp_path: Path) -> None:
    x = floats(*SHAPE)
    layers = qg.diagnose(detector(), [x], progress=False).layers
    assert {"f", "boxes"} <= {layer.name for layer in layers}
    assert "give the results" in str(qg.bisect(detector(), {"x": x}))
    compiled = qg.compile(detector(), num_threads=1)
    same(compiled.trace({"x": x}, tmp_path / "trace.json"), compiled(x))
    near(qg.interpret(compiled.graph, {"x": x}), compiled(x), FLOAT)
    graph = qg.import_model(detector(), fallback=True)
    near(qg.interpret(graph, {"x": x}), compiled(x), FLOAT)
    assert not compiled.has_independent_samples()

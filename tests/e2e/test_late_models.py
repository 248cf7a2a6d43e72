"""Models whose shapes are known late are int8 before and behind what decides these shapes.

Each kind of ``tests.support.late_models`` is held to the same laws.  A strict xfail names what the
way in which such models are compiled today does not do.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import quantglow as qg
from quantglow.evaluation.macs import count_by_run
from quantglow.ort.products import count_products
from quantglow.ort.session import Session
from quantglow.support.arrays import leaves
from tests.support.late_models import BUILDERS, MANY, STREAM, Feeds, LateModel

FOREIGN = {
    *("NonZero", "NonMaxSuppression", "RoiAlign"),
    *("StringNormalizer", "LabelEncoder", "ZipMap"),
    *("SplitToSequence", "SequenceAt", "ConcatFromSequence", "If", "OptionalGetElement"),
}
"""Operators that onnxruntime runs in these models."""

NEAR = 0.06
"""Error of an output of the int8 model, as a share of the largest value of the float output: about
the double of the largest of these samples.  An int8 step of a layer is 0.004 to 0.008 of that."""

EXPORTED = 0.01
"""The same of the exported model against the compiled one: about a step of an output, for sums on a
tie.  Most of these samples have none, and no difference."""

LEAST_SHARE = 0.95

PRODUCTS = {"Conv", "Gemm", "MatMul"}

LATE = ("detector", "rows", "crops", "loop", "decoder", "pieces", "optional")
"""Kinds with products behind what decides shapes."""


def kinds(*names: str, **reasons: str) -> list[Any]:
    """Parameters of a test: kinds of models (none: all), and why some are expected to fail."""

    def marks(name: str) -> list[pytest.MarkDecorator]:
        why = reasons.get(name)
        return [pytest.mark.xfail(strict=True, raises=AssertionError, reason=why)] if why else []

    return [pytest.param(name, marks=marks(name), id=name) for name in names or BUILDERS]


@cache
def late_model(kind: str) -> LateModel:
    """The model of a kind, and its samples."""
    return BUILDERS[kind]()


@cache
def quantized(kind: str) -> Any:
    """The int8 model; no more samples than are all used for the check, too, in their order."""
    late = late_model(kind)
    return qg.quantize_and_compile(
        late.model, late.samples(9), num_threads=2, progress=False, effort="fast"
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("late")


def saved(kind: str, folder: Path) -> Path:
    """The file of the int8 model."""
    path = folder / f"{kind}.qgm"
    if not path.exists():
        quantized(kind).save(path)
    return path


def fresh(kind: str, folder: Path, threads: int = 2) -> Any:
    """The model as another process has it before its first call."""
    return qg.load(saved(kind, folder), num_threads=threads)


def same(results: Sequence[Any], expected: Sequence[Any]) -> None:
    """Equal bit for bit, in shape and type."""
    arrays = leaves(list(results)), leaves(list(expected))
    for one, other in zip(*arrays, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_array_equal(one, other)


def largest_error(results: Sequence[Any], expected: Sequence[Any]) -> float:
    """The largest error of numbers, as a share of the largest value of each output; shapes must be
    equal."""
    errors = [0.0]
    for outputs in zip(results, expected, strict=True):
        arrays, others = (list(leaves(output)) for output in outputs)
        assert [array.shape for array in arrays] == [array.shape for array in others]
        one, other = map(numbers, (arrays, others))
        if one.size:
            errors.append(float(np.abs(one - other).max() / np.abs(other).max()))
    return max(errors)


def numbers(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """The floats of some arrays in order."""
    floats = [array.reshape(-1) for array in arrays if array.dtype.kind == "f"]
    return np.concatenate([(), *floats])


@cache
def float_session(kind: str) -> Session:
    return Session(late_model(kind).model.SerializeToString())


# -- accuracy


@pytest.mark.slow_variants
@pytest.mark.parametrize("kind", kinds())
def test_outputs_are_near_those_of_onnxruntime(kind: str) -> None:
    """Also: float and int8 choose the same rows, so the shapes are those of the float model."""
    compiled, session = quantized(kind), float_session(kind)
    for feeds in late_model(kind).distinct():
        assert largest_error(compiled.run(None, feeds), session.run(feeds)) < NEAR


def test_a_string_is_the_label_of_the_highest_score() -> None:
    compiled, session = quantized("labels"), float_session("labels")
    equal = 0
    samples = late_model("labels").distinct()
    for feeds in samples:
        (label,), scores = compiled.run(None, feeds)
        assert label == f"animal {scores.argmax()}"
        equal += label == session.run(feeds)[0][0]
    assert equal >= len(samples) - 1  # one has two highest scores an int8 step apart


# -- int8


@pytest.mark.slow_variants
@pytest.mark.parametrize("kind", kinds())
def test_products_before_the_late_part_are_int8(kind: str) -> None:
    layers = [layer for layer in quantized(kind).report.layers if layer.op in PRODUCTS]
    assert layers and {layer.precision for layer in layers} == {"int8"}


def test_the_report_says_that_a_loop_of_computed_trips_is_int8() -> None:
    notes = [note for note in quantized("loop").report.notes if "model of its own" in note]
    assert notes and all("in int8" in note for note in notes)


@pytest.mark.parametrize("kind", kinds())
def test_models_are_compiled_to_their_end(kind: str) -> None:
    assert isinstance(quantized(kind), qg.CompiledModel)
    assert {node.op.rpartition(".")[2] for node in quantized(kind).report.fallback} <= FOREIGN


@pytest.mark.parametrize("kind", kinds())
def test_the_report_has_the_share_of_int8(kind: str) -> None:
    """The first sample has the largest late size, and the total is that of the float model."""
    share, late = quantized(kind).report.int8_share, late_model(kind)
    assert share is not None and share.share >= LEAST_SHARE
    assert str(share) in str(quantized(kind).report)
    total = count_products(late.model.SerializeToString(), late.samples(1)[0])
    assert share.total == pytest.approx(total, rel=0.01)


@pytest.mark.parametrize("size", [0, 1, MANY])
@pytest.mark.parametrize("kind", kinds(*LATE))
def test_products_are_int8_at_every_late_size(kind: str, size: int) -> None:
    assert share_at(kind, size) >= LEAST_SHARE


def share_at(kind: str, size: int, model: Any = None) -> float:
    """The share of int8 for a sample of a late size."""
    compiled, feeds = model or quantized(kind), late_model(kind).sample(size, 50)
    compiled.run(None, feeds)
    return count_by_run(lambda: compiled.run(None, feeds)).share


@pytest.mark.slow_variants
@pytest.mark.parametrize("kind", kinds(*LATE))
def test_a_profile_in_place_of_samples_makes_late_parts_int8(kind: str) -> None:
    model, samples = late_model(kind).model, late_model(kind).samples(9)
    profile = qg.profile(model, samples, progress=False)
    compiled = qg.quantize_and_compile(model, profile, num_threads=2, progress=False, effort="fast")
    assert share_at(kind, MANY, compiled) >= LEAST_SHARE


# -- the same results


@pytest.mark.slow_variants
@pytest.mark.parametrize("kind", kinds())
def test_a_saved_model_gives_the_same(kind: str, folder: Path) -> None:
    compiled, loaded = quantized(kind), fresh(kind, folder)
    for feeds in late_model(kind).distinct():
        same(loaded.run(None, feeds), compiled.run(None, feeds))


@pytest.mark.slow_variants
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("kind", kinds())
def test_any_number_of_threads_gives_the_same(kind: str, threads: int, folder: Path) -> None:
    compiled = quantized(kind)
    others = compiled.with_num_threads(threads), fresh(kind, folder, threads)
    for feeds in late_model(kind).distinct()[:5]:
        expected = compiled.run(None, feeds)
        for other in others:
            same(other.run(None, feeds), expected)


@cache
def fresh_results(kind: str, folder: Path) -> list[list[Any]]:
    """The outputs of each sample on a model that has run nothing before."""
    samples = late_model(kind).distinct()
    return [fresh(kind, folder).run(None, feeds) for feeds in samples]


@pytest.mark.slow_variants
@pytest.mark.parametrize("kind", kinds())
def test_a_stream_of_late_sizes_gives_what_fresh_models_give(kind: str, folder: Path) -> None:
    model, samples = fresh(kind, folder), late_model(kind).distinct()
    expected = fresh_results(kind, folder)
    for position in STREAM:
        same(model.run(None, samples[position]), expected[position])


@pytest.mark.slow_variants
@pytest.mark.parametrize("kind", kinds())
def test_calls_side_by_side_give_what_fresh_models_give(kind: str, folder: Path) -> None:
    model, samples = fresh(kind, folder), late_model(kind).distinct()
    expected = fresh_results(kind, folder)
    answers = [(position, model.run_async(samples[position])) for position in STREAM]
    for position, answer in answers:
        same(answer.result(60), expected[position])


def stacked(samples: Sequence[Feeds]) -> Feeds:
    return {name: np.concatenate([feeds[name] for feeds in samples]) for name in samples[0]}


@pytest.mark.parametrize("numbers", [(2,), (0, 2), (2, 2, 5), (3, 4, 5, 7), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("kind", kinds("rows", "labels", "maps"))
def test_a_batch_gives_what_its_samples_give(kind: str, numbers: Sequence[int]) -> None:
    """Also rows of a batch: those of its first sample come first."""
    samples = late_model(kind).distinct()
    batch_is_its_samples(kind, [samples[number] for number in numbers])


def batch_is_its_samples(kind: str, batch: Sequence[Feeds]) -> None:
    compiled = quantized(kind)
    alone = zip(*(compiled.run(None, feeds) for feeds in batch), strict=True)
    same(compiled.run(None, stacked(batch)), [joined(parts) for parts in alone])


def joined(parts: Sequence[Any]) -> Any:
    """An output of a batch, given those of its samples: an array or a sequence."""
    if isinstance(parts[0], list):
        return [item for part in parts for item in part]
    return np.concatenate(parts)


# -- export


@cache
def exported(kind: str, folder: Path) -> onnx.ModelProto:
    path = folder / f"{kind}.int8.onnx"
    quantized(kind).export_onnx(path)
    return onnx.load(path)


@pytest.mark.slow_variants
@pytest.mark.parametrize("kind", kinds())
def test_the_exported_model_agrees_in_onnxruntime(kind: str, folder: Path) -> None:
    session = Session(exported(kind, folder).SerializeToString(), 2)
    samples = late_model(kind).distinct()
    # The program of one row has no mean over rows, after which the exported graph rounds.
    several = (0, 3, 4, 7) if kind == "words" else (0, 2, 3, 4, 5, 7)
    for feeds in (samples[number] for number in several):
        results, expected = session.run(feeds), quantized(kind).run(None, feeds)
        assert largest_error(results, expected) < EXPORTED


@pytest.mark.parametrize("kind", kinds(*LATE))
def test_the_exported_model_agrees_where_nothing_is_chosen(kind: str, folder: Path) -> None:
    """Not optimized: onnxruntime's QLinearMatMul of matrices without a common size gives what its
    memory had before.  The program of this size has fewer operators than the exported graph, which
    round."""
    session = Session(exported(kind, folder).SerializeToString(), 2, optimize=False)
    feeds = late_model(kind).distinct()[1]
    assert largest_error(session.run(feeds), quantized(kind).run(None, feeds)) < NEAR


@pytest.mark.parametrize("kind", kinds())
def test_weights_of_the_exported_model_are_int8(kind: str, folder: Path) -> None:
    """Matrices of products; the table of an embedding is none."""
    graphs = [exported(kind, folder).graph]
    for node in graphs[0].node:
        graphs += [attribute.g for attribute in node.attribute if attribute.name == "body"]
    tables = {node.input[0] for graph in graphs for node in graph.node if node.op_type == "Gather"}
    floats = [
        tensor.name
        for graph in graphs
        for tensor in graph.initializer
        if numpy_helper.to_array(tensor).dtype == np.float32
        and np.prod(tensor.dims) >= 1024
        and tensor.name not in tables
    ]
    assert floats == []


# -- accuracy control


def controlled(kind: str, **options: Any) -> Any:
    """The model under a contract that int8 keeps."""
    late = late_model(kind)
    samples = late.samples(9)
    return qg.quantize_and_compile(
        late.model, samples, max_drop=0.1, num_threads=2, progress=False, effort="fast", **options
    )


def measured(kind: str) -> Any:
    """A figure of a model: 1 less its largest error on some samples."""
    samples = late_model(kind).distinct()[:4]
    expected = [float_session(kind).run(feeds) for feeds in samples]

    def figure(model: Any) -> float:
        pairs = zip(samples, expected, strict=True)
        return 1 - max(largest_error(model.run(None, feeds), values) for feeds, values in pairs)

    return figure


@pytest.mark.slow_variants
@pytest.mark.parametrize("kind", kinds(*LATE))
def test_accuracy_control_measures_late_parts_by_a_function(kind: str) -> None:
    report = controlled(kind, validation_fn=measured(kind)).report
    assert report.int8_share is not None and report.int8_share.share >= LEAST_SHARE


@pytest.mark.slow_variants
@pytest.mark.parametrize("kind", kinds(*LATE))
def test_accuracy_control_measures_late_parts_by_itself(kind: str) -> None:
    report = controlled(kind).report
    assert report.int8_share is not None and report.int8_share.share >= LEAST_SHARE

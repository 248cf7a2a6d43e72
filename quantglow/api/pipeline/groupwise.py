"""``weights="int4"`` or ``"int8"``: products with constant weights take them in groups, and nothing
else is quantized.

The model is written anew with packed weights and compiled as one that came so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from quantglow.api.compile import compile_source
from quantglow.api.models.families import first_of, open_family, open_source
from quantglow.api.pipeline.compilation import with_int8_share, with_latency
from quantglow.api.pipeline.request import QuantizationRequest
from quantglow.api.pipeline.samples import Samples, profile_in
from quantglow.evaluation.accuracy import (
    NO_MATRICES,
    NO_WEIGHTS_QUANTIZED,
    SAME,
    UNSEEN,
    LayerAccuracy,
)
from quantglow.evaluation.layers import MAX_SAMPLES
from quantglow.evaluation.outputs import numeric_outputs, output_accuracy, reference, shape_notes
from quantglow.evaluation.report import Report
from quantglow.evaluation.weight_sizes import WeightSizes
from quantglow.export.onnx.model import export_onnx
from quantglow.importer import onnx as importer
from quantglow.importer.onnx import (
    Source,
    WeightProduct,
    WeightTable,
    weight_products,
    weight_tables,
)
from quantglow.ir.graph.family import Family
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.origins import Origins
from quantglow.ir.graph.signature import declared_only
from quantglow.ir.ops.groupwise import PackedWeights
from quantglow.profiling.samples.feeds import Feeds
from quantglow.quantization.groupwise import input_moments, pack_weights
from quantglow.quantization.options import QuantizationConfig
from quantglow.quantization.plan.scope import exclude
from quantglow.runtime.compiled import CompiledModel
from quantglow.runtime.hybrid.fallback_model import FallbackModel
from quantglow.runtime.programs.build import Compiler
from quantglow.support import debug
from quantglow.support.arrays import Array
from quantglow.support.errors import OptionError
from quantglow.support.processes.workers import side_by_side
from quantglow.transforms.float import optimize

Weights = WeightProduct | WeightTable

FLOAT = "float"
"""Precision of what is not quantized."""

NO_SAMPLES = "weights are rounded to the nearest: there are no calibration samples"
NOT_COMPARED: dict[str, Any] = {"notes": ()}


@dataclass(frozen=True)
class Calibration:
    """Samples that weights are rounded for, and samples for the check."""

    samples: Sequence[Feeds] = ()
    checks: Sequence[Feeds] = ()
    origin: str = SAME


@dataclass(frozen=True)
class Packed:
    """A model with weights in groups, its products and tables, and the sizes of their weights."""

    source: Source
    layers: tuple[LayerAccuracy, ...]
    sizes: WeightSizes
    seconds: dict[str, float] = field(default_factory=dict)


def compile_with_packed_weights(
    model: Any, data: Any, request: QuantizationRequest, compiler: Compiler
) -> CompiledModel | FallbackModel:
    """The model with weights in groups, compiled, and compared with float where there are samples.

    Raises ``OptionError`` for options of int8 activations.
    """
    if request.contract is not None or request.measure_speed or request.validation_data is not None:
        raise OptionError(
            "max_drop, measure_speed and validation_data are for int8 weights and activations. "
            "Remedy: leave them out where weights= is given."
        )
    source = canonical_source(model)
    family = float_family(source)
    calibration = _calibrate_groups(data, family, request)
    packed = with_packed_weights(source, family, calibration.samples, request.config)
    compiled = compile_source(packed.source, request.input_shapes, compiler)
    if isinstance(compiled, FallbackModel):
        return compiled
    checks = [feeds for feeds in calibration.checks if request.verify]
    accuracy = _compare(source, family, compiled, checks) if checks else NOT_COMPARED
    notes = () if calibration.samples else (NO_SAMPLES,)
    facts: dict[str, Any] = {
        **accuracy,
        "layers": packed.layers,
        "samples": len(checks),
        "origin": calibration.origin if checks else "",
        "weights": packed.sizes,
        "notes": (*notes, *accuracy["notes"], *_missing_weights(packed.layers)),
    }
    reported = CompiledModel(compiled.specialisations, _reporter(compiled, facts, packed.seconds))
    if checks:
        reported = with_int8_share(reported, checks, may_run=True)
    if request.measure_latency:
        return with_latency(reported, model, checks)
    return reported


def _missing_weights(layers: Sequence[LayerAccuracy]) -> tuple[str, ...]:
    """A note where no weights are quantized."""
    if any(layer.precision != FLOAT for layer in layers):
        return ()
    return (NO_WEIGHTS_QUANTIZED if layers else NO_MATRICES,)


def _reporter(
    compiled: CompiledModel, facts: Mapping[str, Any], seconds: Mapping[str, float]
) -> Callable[[], Report]:
    """The report of a compiled model with these facts.  It keeps no float weights alive."""

    def report() -> Report:
        report = compiled.report
        notes = (*report.notes, *facts["notes"])
        return replace(
            report, **{**facts, "seconds": {**seconds, **report.seconds}, "notes": notes}
        )

    return report


def graph_with_packed_weights(graph: Graph, data: Any, config: QuantizationConfig) -> Graph:
    """A float graph whose products have weights in groups, optimized."""
    source = canonical_source(graph)
    family = float_family(source)
    samples = _calibrate_groups(
        data, family, QuantizationRequest(config=config, verify=False)
    ).samples
    packed = with_packed_weights(source, family, samples, config)
    return optimize(packed.source.graph(fallback=True))


def canonical_source(model: Any) -> Source:
    """The source of a model, or of a float graph."""
    if isinstance(model, Graph):
        return importer.open_model(export_onnx(model))
    return open_source(model)


def float_family(source: Source) -> Family:
    """The graphs of a model as they are imported: with the names of all its values."""
    return Family(source.signature, source.source_hash, source.at)


def _calibrate_groups(data: Any, family: Family, request: QuantizationRequest) -> Calibration:
    """The samples in calibration data; none in a profile."""
    if data is None or profile_in(data) is not None:
        return Calibration()
    reader = Samples(
        data, family, request.subset_size, holds_out=request.verify, seed=request.config.seed
    )
    samples = [feeds for feeds, _ in zip(reader, range(request.subset_size), strict=False)]
    unseen = reader.held.samples if reader.held else []
    checks, origin = (unseen, UNSEEN) if unseen else (samples, SAME)
    first = [feeds for feeds in checks if _feed_shapes(feeds) == _feed_shapes(checks[0])]
    return Calibration(samples, first[:MAX_SAMPLES], origin)


def _feed_shapes(feeds: Feeds) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in feeds.items()}


def with_packed_weights(
    source: Source, family: Family, samples: Sequence[Feeds], config: QuantizationConfig
) -> Packed:
    """The model whose products have weights in groups, rounded for the samples if there are any."""
    seconds: dict[str, float] = {}
    matrices: list[Weights] = [*weight_products(source), *weight_tables(source)]
    reasons = _float_reasons(matrices, source, config)
    chosen = [weights for weights in matrices if weights.result not in reasons]
    with debug.time_stage("quantize", seconds), side_by_side():
        packed = round_weights(chosen, family, samples, config)
        pairs = ((weights, packed[weights.result]) for weights in chosen)
        replaced = importer.with_packed_weights(source, pairs, config.activations)
    before = sum(_float_array(weights).nbytes for weights in chosen)
    after = sum(_arrays_nbytes(arrays) for arrays in packed.values())
    layers = _layer_accuracies(matrices, reasons, config)
    return Packed(replaced, layers, WeightSizes(before, after), seconds)


def _float_array(weights: Weights) -> Array:
    """The weights as the model has them."""
    return weights.weights if isinstance(weights, WeightProduct) else weights.table


def _arrays_nbytes(packed: PackedWeights) -> int:
    """Bytes of codes, scales and zero points."""
    points = 0 if packed.zero_points is None else packed.zero_points.nbytes
    return packed.codes.nbytes + packed.scales.nbytes + points


def _float_reasons(
    matrices: Sequence[Weights], source: Source, config: QuantizationConfig
) -> dict[str, str]:
    """Result of a product or a table -> the reason why its weights stay float.

    Raises ``IgnoredScopeError``.
    """
    by_result = {name: origin for origin in source.origins for name in origin.results}
    origins = {weights.result: Origins((by_result[weights.result],)) for weights in matrices}
    misfits = {weights.result: _misfit(weights, config.group_size) for weights in matrices}
    reasons = {result: reason for result, reason in misfits.items() if reason}
    return reasons | exclude(origins, source.origins, config)


def _misfit(weights: Weights, group_size: int) -> str:
    """Why weights are no groups, empty if they are: onnxruntime wants a group along K of a product
    at least, and whole groups in the rows of a table.
    """
    if isinstance(weights, WeightProduct):
        depth = weights.weights.shape[0]
        is_short = depth < group_size
        return f"{depth} inputs are fewer than a group of {group_size}" if is_short else ""
    width = weights.table.shape[1]
    return f"rows of {width} are no whole groups of {group_size}" if width % group_size else ""


def round_weights(
    chosen: Sequence[Weights],
    family: Family,
    samples: Sequence[Feeds],
    config: QuantizationConfig,
) -> Mapping[str, PackedWeights]:
    """Packed weights, by the results of those who read them."""
    packed: dict[str, PackedWeights] = {}

    def add(weights: Weights, moments: Array | None) -> None:
        form = (config.weight_bits, config.group_size, config.symmetric_weights)
        array = _float_array(weights)
        matrix = array if isinstance(weights, WeightProduct) else array.T
        packed[weights.result] = pack_weights(matrix, *form, moments)

    products = [weights for weights in chosen if isinstance(weights, WeightProduct)]
    if samples:
        depths = {product.x: product.weights.shape[0] for product in products}
        for moments in input_moments(depths, samples, family.fitting):
            for product in products:
                if product.x in moments:
                    add(product, moments[product.x])
    for weights in chosen:
        if weights.result not in packed:
            add(weights, None)
    return packed


def _compare(
    source: Source, family: Family, compiled: CompiledModel, checks: Sequence[Feeds]
) -> dict[str, Any]:
    """Fields of the report: the outputs against the float model, who computed that, and notes."""
    graph = first_of(lambda late: open_family(source, late_results=late).fitting(checks[0]))
    ports = graph.signature.inputs
    with reference(source.serialize(), graph, checks) as references:
        results = [compiled.run(None, declared_only(ports, feeds)) for feeds in checks]
        expected = references()
    outputs = output_accuracy(graph, results, expected.outputs)
    names = numeric_outputs(graph)
    notes = (*expected.notes, *shape_notes(names, results, expected.outputs))
    return {"outputs": outputs, "compared_with": expected.name, "notes": notes}


def _layer_op_type(weights: Weights) -> str:
    """The operator that reads the weights."""
    return weights.op_type if isinstance(weights, WeightProduct) else "Gather"


def _layer_accuracies(
    matrices: Sequence[Weights], reasons: Mapping[str, str], config: QuantizationConfig
) -> tuple[LayerAccuracy, ...]:
    """Products and tables, what they compute with, and why that is float."""
    kind = "dynamic int8" if config.activations == "dynamic" else "float"

    def precision(weights: Weights) -> str:
        if weights.result in reasons:
            return FLOAT
        is_product = isinstance(weights, WeightProduct)
        return f"{config.weights} weights" + f", {kind} activations" * is_product

    return tuple(
        LayerAccuracy(w.result, _layer_op_type(w), precision(w), reasons.get(w.result, ""))
        for w in matrices
    )

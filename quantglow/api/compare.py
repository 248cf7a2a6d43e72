"""``compare``: int8 of quantglow beside that of other quantizers, on the user's model and data."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from quantglow.api.models.families import with_steps
from quantglow.api.pipeline.request import QuantizationArguments, import_request
from quantglow.api.pipeline.samples import Samples, profile_in
from quantglow.api.quantize_and_compile import quantize_and_compile
from quantglow.evaluation.accuracy import SAME, UNSEEN, LayerAccuracy, OutputAccuracy
from quantglow.evaluation.baselines.latency import OURS, Contender, compare_latency, failure_reason
from quantglow.evaluation.baselines.quantizers import (
    FLOAT,
    PEER_QUANTIZERS,
    BaselineQuantizer,
    QuantizerComparison,
    QuantizerFigures,
    file_nbytes,
    of_one_mechanism,
)
from quantglow.evaluation.latencies import busy_note
from quantglow.evaluation.layers import MAX_SAMPLES, accumulate_errors, values_by_name
from quantglow.evaluation.metrics import ErrorSums, class_like
from quantglow.evaluation.outputs import compare_output
from quantglow.evaluation.outputs import with_logits as report_with_logits
from quantglow.importer import as_onnx
from quantglow.ir.graph.family import Family
from quantglow.ir.graph.signature import declared_only
from quantglow.ir.types import DType, TensorType
from quantglow.ort.float_results import Outputs, running
from quantglow.ort.quantizer_input import logits_in, quantizer_input, with_logits
from quantglow.profiling.samples.feeds import Feeds
from quantglow.runtime.compiled import CompiledModel
from quantglow.runtime.hybrid.fallback_model import FallbackModel
from quantglow.support.arguments import strings
from quantglow.support.arrays import Array
from quantglow.support.errors import CalibrationError, ModelError, OptionError, QuantglowError
from quantglow.support.options import (
    POSITIVE,
    OptionKind,
    option,
    option_values,
    takes_options,
)
from quantglow.support.processes.isolation import IsolationError
from quantglow.support.progress import step

CALIBRATING = ("import", "profile", "prepare", "quantize")
"""Stages of quantglow that count as calibration: those from the float to the int8 model."""


@dataclass(frozen=True)
class SampleSplit:
    """Samples to calibrate on, and samples to compare outputs on; both as the model declares."""

    calibration: Sequence[Feeds]
    checked: Sequence[Feeds]
    origin: str

    @staticmethod
    def of(data: Any, family: Family, subset_size: int, seed: int) -> SampleSplit:
        """The split that ``quantize_and_compile`` makes.  Raises ``CalibrationError``."""
        if profile_in(data) is not None:
            raise CalibrationError(
                "a profile holds no samples for other quantizers. Remedy: give the samples."
            )
        reader = Samples(data, family, subset_size, holds_out=True, seed=seed)
        ports = family.signature.inputs
        used = [declared_only(ports, feeds) for feeds in reader]
        if not used:
            raise CalibrationError("there are no samples. Remedy: give at least one.")
        held = reader.held.samples if reader.held else []
        unseen = [declared_only(ports, feeds) for feeds in held]
        return SampleSplit(used, unseen or used, UNSEEN if unseen else SAME)


@dataclass(frozen=True)
class Checked:
    """Samples and the float outputs for them, by name of the output; behind these the logits of
    some, which are values called ``logits``, by position of the output.
    """

    samples: Sequence[Feeds]
    names: Sequence[str]
    expected: Outputs
    logits: Mapping[int, str]

    def outputs(self, results: Outputs) -> tuple[OutputAccuracy, ...]:
        """The accuracy of a model's outputs that are numbers; of the logits behind them, too, if it
        gives them."""
        outputs = {
            position: compare_output(
                name, *self.pair(results, position), self.is_class_like(position)
            )
            for position, name in enumerate(self.names)
            if self.expected[0][position].dtype.kind not in "OU"
        }
        if len(results[0]) == len(self.expected[0]):
            for rank, position in enumerate(self.logits, len(self.names)):
                sums = sum(map(ErrorSums.of, *self.pair(results, rank)), ErrorSums())
                outputs[position] = replace(outputs[position], logits_db=sums.sqnr_db)
        return tuple(outputs.values())

    def pair(self, results: Outputs, position: int) -> tuple[list[Array], list[Array]]:
        """The float results of all samples at a position, and those of a model."""
        return [each[position] for each in self.expected], [each[position] for each in results]

    def is_class_like(self, position: int) -> bool:
        """Whether an output has a score for each class."""
        return class_like(TensorType(DType.F32, self.expected[0][position].shape))


def _check_quantizers(option: str, names: Any) -> tuple[str, ...]:
    """Names of quantizers.  Raises ``OptionError``."""
    chosen = strings(names, option)
    if missing := [name for name in chosen if name not in PEER_QUANTIZERS]:
        raise OptionError(f"{option} has {missing[0]!r}; there are {', '.join(PEER_QUANTIZERS)}")
    return chosen


def _refuse_check(option: str, value: Any) -> bool:
    """Raise ``OptionError`` for a check of the outputs: there is one already."""
    if value is not False:
        raise OptionError(f"compare has its own check of outputs. Remedy: leave {option} out.")
    return False


QUANTIZERS = OptionKind(_check_quantizers, {"nargs": "+", "choices": tuple(PEER_QUANTIZERS)})


@dataclass(frozen=True, kw_only=True, repr=False)
class CompareArguments(QuantizationArguments):
    """The arguments of ``compare``."""

    quantizers: Iterable[str] = option(
        tuple(PEER_QUANTIZERS),
        QUANTIZERS,
        "the others, by default all: onnxruntime's (QDQ, u8 activations, s8 weights per channel) "
        f"and NNCF for OpenVINO ({', '.join(PEER_QUANTIZERS)}); one that is missing, fails or "
        "takes longer than ``peer_minutes`` is a row with the reason",
        metavar="NAME",
    )
    seconds: float = option(
        1.0, POSITIVE, "about how long the latency of each is measured, in turns, in seconds"
    )
    peer_minutes: float = option(10.0, POSITIVE, "time limit of each of the others, in minutes")
    verify: Literal[False] = option(
        False,
        OptionKind(_refuse_check, None),
        "always False: outputs are compared here, by all quantizers on the same samples",
    )


@takes_options(CompareArguments)
def compare(options: CompareArguments) -> QuantizerComparison:
    """Quantize a model with quantglow and with others, on the same samples, and compare them.

    All quantizers get the model with the steps ``before`` and ``after``.  Outputs are compared with
    those of the float model in onnxruntime, on samples that no quantizer calibrates on, where there
    are ten or more.  Other runtimes run in child processes, as users run them; a note says where
    onnxruntime is more exact with a session option.
    """
    model, calibration_data = as_onnx(options.model, options.calibration_data)
    model = with_steps(model, options.before, options.after)
    source = import_request(model, calibration_data, options.input_shapes)
    split = SampleSplit.of(source.data, source.family, options.subset_size, options.seed)
    busy = busy_note()
    ours = replace(
        options,
        model=model,
        calibration_data=list(split.calibration),
        subset_size=len(split.calibration),
        before=None,
        after=None,
    )
    compiled = quantize_and_compile(**option_values(ours, QuantizationArguments))
    rows = _measure(options, model, source.family, split, compiled)
    samples = len(split.checked)
    return QuantizerComparison(rows, samples, split.origin, compiled.num_threads, busy)


def _measure(
    options: CompareArguments,
    model: Any,
    family: Family,
    split: SampleSplit,
    compiled: CompiledModel | FallbackModel,
) -> list[QuantizerFigures]:
    """The rows of the float model, of quantglow's and of the others.  Raises ``ModelError``."""
    baselines = [PEER_QUANTIZERS[name] for name in options.quantizers]
    minutes = options.peer_minutes
    with tempfile.TemporaryDirectory(prefix="quantglow-") as folder:
        path = Path(folder) / "float.onnx"
        path.write_bytes(quantizer_input(model, options.input_shapes or {}).SerializeToString())
        with step("the float model runs"):
            checked = _check_by_float(path, compiled, split.checked)
        rows = [_float_row(path), _our_row(compiled, family, checked, Path(folder))]
        for baseline in baselines:
            with step(f"{baseline.name} quantizes, {minutes:g} minutes at most"):
                rows.append(_baseline_row(baseline, path, split.calibration, checked, 60 * minutes))
        with step("latencies are measured"):
            feeds, seconds = split.checked[0], options.seconds
            rows = of_one_mechanism(rows)
            return _with_latencies(rows, baselines, path, compiled, feeds, seconds)


def _check_by_float(
    path: Path, compiled: CompiledModel | FallbackModel, samples: Sequence[Feeds]
) -> Checked:
    """The float outputs, by onnxruntime.  Raises ``ModelError``."""
    names = [info.name for info in compiled.get_outputs()]
    try:
        with running(str(with_logits(path)), samples) as answer:
            return Checked(samples, names, answer()[0], logits_in(path))
    except IsolationError as error:
        raise ModelError(
            f"onnxruntime does not run the float model, with which all are compared: {error}"
        ) from error


def _float_row(path: Path) -> QuantizerFigures:
    """The row of the float model."""
    return QuantizerFigures(FLOAT, nbytes=file_nbytes(path))


def _our_row(
    compiled: CompiledModel | FallbackModel, family: Family, checked: Checked, folder: Path
) -> QuantizerFigures:
    """The row of quantglow."""
    results = [compiled.run(None, feeds) for feeds in checked.samples]
    outputs = _with_our_logits(checked.outputs(results), compiled, family, checked.samples)
    compiled.save(folder / "ours.qgm")
    spent = sum(compiled.report.seconds.get(stage, 0.0) for stage in CALIBRATING)
    nbytes = (folder / "ours.qgm").stat().st_size
    return QuantizerFigures(OURS, nbytes=nbytes, calibration_seconds=spent, outputs=outputs)


def _with_our_logits(
    outputs: tuple[OutputAccuracy, ...],
    compiled: CompiledModel | FallbackModel,
    family: Family,
    samples: Sequence[Feeds],
) -> tuple[OutputAccuracy, ...]:
    """The outputs with the SQNR of logits as reports have it: on a few samples, by the interpreter;
    without it for other shapes than those of the graph."""
    if not isinstance(compiled, CompiledModel):
        return outputs
    sums: dict[str, ErrorSums] = {}
    try:
        graph = family.fitting(samples[0])
        for feeds in samples[:MAX_SAMPLES]:
            exact = values_by_name(graph, feeds)
            for name, of_sample in accumulate_errors(compiled.graph, feeds, exact).items():
                sums[name] = sums.get(name, ErrorSums()) + of_sample
    except (KeyError, QuantglowError):
        return outputs
    layers = [
        LayerAccuracy(name, "", "", sqnr_accumulated_db=total.sqnr_db)
        for name, total in sums.items()
    ]
    return report_with_logits(outputs, graph, layers)


def _baseline_row(
    baseline: BaselineQuantizer,
    source: Path,
    samples: Sequence[Feeds],
    checked: Checked,
    limit: float,
) -> QuantizerFigures:
    """The row of another quantizer, without its latency; with the reason if it fails."""
    target = _baseline_path(baseline, source)
    try:
        spent = baseline.quantize(source, target, samples, limit)
        results = baseline.run(target, checked.samples, limit)
        figures = QuantizerFigures(baseline.name, outputs=checked.outputs(results))
        if baseline.exact_options is not None:
            exact = baseline.run(target, checked.samples, limit, is_exact=True)
            if not same(results, exact):
                figures = replace(figures, exact_outputs=checked.outputs(exact))
    except IsolationError as error:
        return QuantizerFigures(baseline.name, reason=failure_reason(error, baseline.packages))
    except ValueError as error:
        return QuantizerFigures(baseline.name, reason=f"its outputs differ in shape: {error}")
    return replace(figures, nbytes=file_nbytes(target), calibration_seconds=spent)


def same(one: Outputs, other: Outputs) -> bool:
    """Whether all outputs of all samples are equal, bit for bit."""
    pairs = zip(chain.from_iterable(one), chain.from_iterable(other), strict=True)
    return all(a.tobytes() == b.tobytes() for a, b in pairs)


def _baseline_path(baseline: BaselineQuantizer, source: Path) -> Path:
    """The file of a quantizer's model."""
    return source.parent / f"{baseline.name}{baseline.suffix}"


def _with_latencies(
    rows: Sequence[QuantizerFigures],
    baselines: Sequence[BaselineQuantizer],
    source: Path,
    compiled: CompiledModel | FallbackModel,
    feeds: Feeds,
    seconds: float,
) -> list[QuantizerFigures]:
    """The rows with latencies of the models that ran."""
    ran = [baseline for baseline, row in zip(baselines, rows[2:], strict=True) if not row.reason]
    contenders = [
        Contender(FLOAT, "onnxruntime", str(source)),
        *(
            Contender(baseline.name, baseline.runtime, str(_baseline_path(baseline, source)))
            for baseline in ran
        ),
    ]
    run: Callable[[Any], object] = lambda feeds: compiled.run(None, feeds)  # noqa: E731
    latencies = compare_latency(run, feeds, contenders, compiled.num_threads, seconds)
    measured = {each.runtime: each for each in latencies}
    return [
        replace(row, seconds=latency.median if not latency.reason else None, reason=latency.reason)
        if (latency := measured.get(row.name))
        else row
        for row in rows
    ]

"""The check of a compiled model against the float model, on samples of the calibration data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from quantglow.foreign_types import Array
from quantglow.graph.graph import Graph
from quantglow.ops.work import evaluated_macs
from quantglow.processes.interrupts import ended, is_interrupted
from quantglow.profiling import Profile
from quantglow.quantization.report import QuantizationReport
from quantglow.report.accuracy.accuracy import LayerAccuracy, OutputAccuracy
from quantglow.report.accuracy.headline import RightAnswers
from quantglow.report.accuracy.layers import layer_accuracy
from quantglow.report.accuracy.outputs import Reference, Runner, output_accuracy, with_logits

Sample = TypeVar("Sample", bound=Mapping[str, Array])

MAX_SAMPLES = 8
"""Number of calibration samples that are kept for the check if none are held out, and of samples
for the check of each layer in any case."""

WORK = 10**11
"""Maximum number of multiply-accumulates of a check with more than ``MAX_SAMPLES`` samples."""

LAYER_ELEMENTS = 2_000_000
"""Maximum number of values of the float graph in the per-layer check: large models get one
sample."""


Counter = Callable[[Sequence[Sequence[Array]], Sequence[Sequence[Array]]], RightAnswers | None]
"""Right answers of the float and of the int8 model for the outputs of all samples,
[samples][outputs]."""


def no_labels(wanted: object, found: object) -> None:
    """None: the right answers are not known."""


def affordable(samples: Sequence[Sample], graph: Graph) -> Sequence[Sample]:
    """The samples that the check has time for."""
    work = sum(map(evaluated_macs, graph.compute_nodes()))
    return samples[: max(MAX_SAMPLES, WORK // max(int(work), 1))]


@dataclass(frozen=True)
class Verification:
    """Figures of the check, empty if there was nothing to compare."""

    outputs: tuple[OutputAccuracy, ...] = ()
    layers: tuple[LayerAccuracy, ...] = ()
    compared_with: str = ""
    samples: int = 0
    notes: tuple[str, ...] = ()
    right: RightAnswers | None = None


def verify(
    reference: Reference,
    float_graph: Graph,
    graph: Graph,
    decisions: QuantizationReport,
    run: Runner,
    samples: Sequence[Mapping[str, Array]],
    profile: Profile,
    right: Counter = no_labels,
) -> Verification:
    """Check of the outputs of ``run`` against the ``reference``, of the layers of ``graph`` against
    ``float_graph`` by the interpreter, and of ranges against their ``profile``.

    A check that fails becomes a note: the model does not depend on it.
    """
    if not samples:
        return unverified(decisions, "not checked: a profile holds no samples to check with")

    def compared() -> Verification:
        expected = reference()
        found = list(map(run, samples))
        outputs = output_accuracy(graph, found, expected.outputs)
        shares = right(expected.outputs, found)
        return Verification(outputs, (), expected.name, len(samples), expected.notes, shares)

    def by_layer() -> Verification:
        affordable = LAYER_ELEMENTS // sum(node.type.size for node in float_graph.nodes)
        few = samples[: min(max(1, affordable), MAX_SAMPLES)]
        found = layer_accuracy(
            float_graph, graph, decisions, until_interrupted(few), profile.histograms
        )
        return Verification(layers=found)

    outputs = attempted(compared, Verification(), "the outputs were not compared")
    layers = attempted(by_layer, unverified(decisions), "the layers were not compared")
    figures = with_logits(outputs.outputs, float_graph, layers.layers)
    notes = (*outputs.notes, *layers.notes)
    return replace(outputs, outputs=figures, layers=layers.layers, notes=notes)


def until_interrupted(samples: Iterable[Sample]) -> Iterator[Sample]:
    """The samples until Ctrl-C, at least one."""
    for index, feeds in enumerate(samples):
        if index and is_interrupted():
            ended("the check", f"Ctrl-C ended the check early: after {index} sample(s)")
            return
        yield feeds


def attempted(
    check: Callable[[], Verification], otherwise: Verification, failure: str
) -> Verification:
    """The result of a check; ``otherwise`` with a note if it raises."""
    try:
        return check()
    except Exception as error:  # noqa: BLE001 - no check costs the model that it checks
        note = f"{failure}: {type(error).__name__}: {error}"
        return replace(otherwise, notes=(*otherwise.notes, note))


def unverified(decisions: QuantizationReport, *notes: str) -> Verification:
    """The decisions alone, without a run."""
    layers = tuple(map(LayerAccuracy.of, decisions.nodes))
    return Verification(layers=layers, notes=notes)

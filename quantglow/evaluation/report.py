"""Report: figures of a compilation, its accuracy and its cost.

A process that runs a saved model has a report, so nothing here needs the quantizer, or anything
that shows figures.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from quantglow.evaluation.accuracy import (
    NO_MATRICES,
    NO_WEIGHTS_QUANTIZED,
    NOTHING_QUANTIZED,
    LayerAccuracy,
    OutputAccuracy,
    RightAnswers,
    plain,
)
from quantglow.evaluation.baselines.latency import MeasuredLatency
from quantglow.evaluation.int8_share import Int8Share
from quantglow.evaluation.layer_speed import LayerSpeed
from quantglow.evaluation.weight_sizes import WeightSizes
from quantglow.ir.graph.graph import Graph
from quantglow.ort.fallback import FallbackNode
from quantglow.profiling import Histogram
from quantglow.runtime.programs.build import Build
from quantglow.runtime.shapes.specializations import ServedShapes
from quantglow.support.classes import Concise
from quantglow.support.errors import FileFormatError
from quantglow.support.views import HasView, show

UNNAMED = "model"

TraceLike = Mapping[str, Any] | str | os.PathLike[str] | None
"""A trace in Chrome's format, the path of one, or none."""

FORMER_KEYS = {"raised": "precision_overrides", "delegated": "fallback"}
"""Keys of saved reports that have another name today."""


@dataclass(frozen=True)
class MemoryFigures:
    """The static plan: arena size, and the lower bound of any plan of this schedule."""

    peak_nbytes: int = 0
    lower_bound_nbytes: int = 0
    constants_nbytes: int = 0

    @property
    def efficiency(self) -> float:
        """Lower bound over peak; 1.0 is optimal."""
        return self.lower_bound_nbytes / self.peak_nbytes if self.peak_nbytes else 1.0


@dataclass(frozen=True)
class PrecisionOverride:
    """A value that became int16, or an operator that became float.

    ``error`` is the noise over signal of the outputs caused by its rounding alone, as measured;
    ``seconds`` are its additional time, as estimated for one core (see ``search.time_budget``).
    """

    name: str
    precision: str
    error: float
    seconds: float

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> PrecisionOverride:
        """The object from the result of ``asdict``."""
        name, precision = str(data["name"]), str(data["precision"])
        return PrecisionOverride(name, precision, float(data["error"]), float(data["seconds"]))


@dataclass(frozen=True, repr=False)
class PageSource(Concise):
    """The name of a model, histograms of its values by name, options, and a timeline in Chrome's
    format.
    """

    title: str = UNNAMED
    histograms: Mapping[str, Histogram] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    trace: Mapping[str, Any] | None = None


@dataclass(frozen=True, repr=False)
class Report(Concise, HasView):
    """``print`` it in a terminal, show it in a notebook, or take ``to_json()``.

    ``compared_with`` names the source of the float results, ``samples`` is the number of compared
    samples and ``origin`` their source, ``right`` has the shares of labels that both models find;
    ``warnings`` are signs that the calibration data differs from the training data; ``seconds`` is
    the time of each stage; ``profile`` names the source of the ranges; ``programs`` are those of
    all shapes that came, where shapes are free; ``weights`` are their sizes in float and now,
    ``int8_share`` is that of int8 in the multiply-accumulates of the whole model, None where it was
    not counted; ``latency`` is measured with ``measure_latency``; a page shows ``graph`` and
    ``source``.

    It shows the tables that matter; ``full`` has all of them.
    """

    target: str
    num_threads: int
    memory: MemoryFigures
    seconds: Mapping[str, float]
    outputs: tuple[OutputAccuracy, ...] = ()
    layers: tuple[LayerAccuracy, ...] = ()
    profile: Mapping[str, Any] = field(default_factory=dict)
    compared_with: str = ""
    samples: int = 0
    notes: tuple[str, ...] = ()
    fallback: tuple[FallbackNode, ...] = ()
    speeds: tuple[LayerSpeed, ...] = ()
    precision_overrides: tuple[PrecisionOverride, ...] = ()
    warnings: tuple[str, ...] = ()
    origin: str = ""
    right: RightAnswers | None = None
    programs: tuple[ServedShapes, ...] = ()
    weights: WeightSizes | None = None
    latency: MeasuredLatency | None = None
    int8_share: Int8Share | None = None
    graph: Graph | None = field(default=None, repr=False, compare=False)
    source: PageSource | None = field(default=None, repr=False, compare=False)

    def showing(self, graph: Graph) -> Report:
        """The report with the graph that a page draws."""
        return replace(self, graph=graph)

    def serving(self, programs: tuple[ServedShapes, ...]) -> Report:
        """The report with the programs of all shapes that came."""
        return replace(self, programs=programs)

    @property
    def is_all_float(self) -> bool:
        """Whether a model that was to be quantized has no int8 operator, nor quantized weights."""
        return not {NOTHING_QUANTIZED, NO_WEIGHTS_QUANTIZED, NO_MATRICES}.isdisjoint(self.notes)

    @property
    def subject(self) -> str:
        """The beginning of the headline: what is compared with float."""
        kinds = {layer.precision for layer in self.layers}
        weights = next((kind.partition(",")[0] for kind in kinds if " weights" in kind), "")
        return f"the model with {weights} is" if weights else "int8 is"

    @property
    def operators(self) -> dict[str, int]:
        """Number of operators by precision, most first; onnxruntime's are float."""
        counts = Counter(layer.precision for layer in self.layers)
        counts.update(f"in {node.backend}" for node in self.fallback)
        return dict(counts.most_common())

    @property
    def headline(self) -> str:
        """The accuracy of int8 in words, or that nothing is; empty if no outputs were compared."""
        return str(show(self).headline)

    @property
    def verdict(self) -> str:
        """The headline in a few words; empty if no outputs were compared."""
        return str(show(self).verdict)

    @property
    def full(self) -> Any:
        """The report with all its tables: every layer, codes, times of stages."""
        return show(self).full

    def summary(self, next_step: str = "") -> Any:
        """Accuracy, size, speed and the next step; None for a model that was not quantized."""
        return show(self).summary(next_step)

    def tables(self, all_layers: bool = False) -> Iterator[Any]:
        """The tables that matter, or all: see ``full``."""
        view = show(self)
        tables: Iterator[Any] = (view.full if all_layers else view).tables()
        return tables

    def to_json(self) -> dict[str, Any]:
        """The report in types that ``json`` writes; infinite figures become ``"inf"``."""
        return without_page(self)

    def to_html(self, trace: TraceLike = None) -> str:
        """The page that explains the model: graph, advice, tables, histograms, timeline.

        It needs no other file, and holds none of the samples.  ``trace`` is a timeline, or the path
        of one that ``compiled.trace`` wrote.  Raises ``FileFormatError`` for what is none.
        """
        return str(show(self).page(trace))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled by its figures: passes of the graph for a page are functions of this process."""
        return Report.from_json, (self.to_json(),)

    def __copy__(self) -> Report:
        return self

    def __deepcopy__(self, memo: object) -> Report:
        return self

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Report:
        """The report from the result of ``to_json``.  Raises ``FileFormatError``."""
        try:
            return _from_json(data)
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            raise FileFormatError(
                f"the report is damaged: {error!r}. Remedy: save the model again."
            ) from error


def build_report(build: Build, seconds: Mapping[str, float]) -> Report:
    """The report of a build; ``seconds`` are the stages before it."""
    figures = [plan.figures for plan in build.plans]
    return Report(
        target=build.target,
        num_threads=build.num_threads,
        memory=MemoryFigures(
            sum(figure.peak_nbytes for figure in figures),
            sum(figure.lower_bound_nbytes for figure in figures),
            sum(figure.constant_nbytes for figure in figures),
        ),
        seconds={**seconds, **build.seconds},
        fallback=build.fallback,
    )


def without_page(report: Any) -> dict[str, Any]:
    """The fields of a report in types that ``json`` writes, but ``graph`` and ``source``."""
    facts = dict(plain(asdict(replace(report, graph=None, source=None))))
    return {key: value for key, value in facts.items() if key not in ("graph", "source")}


def _from_json(data: Mapping[str, Any]) -> Report:
    data = {FORMER_KEYS.get(key, key): value for key, value in data.items()}
    if unknown := set(data) - {f.name for f in fields(Report)}:
        raise ValueError(f"unknown entries {sorted(unknown)}")
    overrides = data.get("precision_overrides", ())
    return Report(
        target=str(data["target"]),
        num_threads=int(data["num_threads"]),
        memory=MemoryFigures(**{key: int(value) for key, value in data["memory"].items()}),
        seconds={str(key): float(value) for key, value in data["seconds"].items()},
        outputs=tuple(OutputAccuracy.from_json(o) for o in data["outputs"]),
        layers=tuple(LayerAccuracy.from_json(layer) for layer in data["layers"]),
        profile=dict(data["profile"]),
        compared_with=str(data["compared_with"]),
        samples=int(data["samples"]),
        notes=tuple(map(str, data["notes"])),
        speeds=tuple(LayerSpeed.from_json(speed) for speed in data.get("speeds", ())),
        fallback=tuple(FallbackNode.from_json(d) for d in data.get("fallback", ())),
        precision_overrides=tuple(map(PrecisionOverride.from_json, overrides)),
        warnings=tuple(map(str, data.get("warnings", ()))),
        origin=str(data.get("origin", "")),
        right=RightAnswers.from_json(data["right"]) if data.get("right") else None,
        programs=tuple(map(ServedShapes.from_json, data.get("programs", ()))),
        weights=WeightSizes.from_json(data["weights"]) if data.get("weights") else None,
        latency=MeasuredLatency.from_json(data["latency"]) if data.get("latency") else None,
        int8_share=Int8Share.from_json(data["int8_share"]) if data.get("int8_share") else None,
    )

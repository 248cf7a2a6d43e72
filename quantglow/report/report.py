"""Report: the steps of a compilation, the accuracy of its result, and its cost.

``ShownReport`` shows it with the tables that matter, or with all of them.
"""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from quantglow.evaluation.accuracy import (
    ALL_FLOAT,
    ALL_FLOAT_WARNING,
    NOTHING_QUANTIZED,
    SUSPECTS,
    LayerAccuracy,
    OutputAccuracy,
    RightAnswers,
    float_table,
    headline,
    is_close,
    layers_table,
    outputs_table,
    verdict,
    with_figure,
    worst,
    worst_sqnr_db,
    worst_tables,
)
from quantglow.evaluation.baselines.latency import MeasuredLatency
from quantglow.evaluation.layer_speed import LayerSpeed, speed_table
from quantglow.evaluation.weight_sizes import WeightSizes
from quantglow.ir.graph.graph import Graph
from quantglow.ort.fallback import FallbackNode
from quantglow.report.page import Figures, PageSource, TraceLike, page_of, without_page
from quantglow.report.sections import (
    PrecisionOverride,
    Summary,
    fallback_table,
    overrides_table,
    programs_table,
)
from quantglow.runtime.programs.build import Build
from quantglow.runtime.shapes.specializations import ServedShapes
from quantglow.support.classes import Concise
from quantglow.support.display.tables import Table, Tabular, nbytes_text
from quantglow.support.errors import FileFormatError

if TYPE_CHECKING:
    pass


SHOWN = 5
"""Number of rows of tables that are cut."""

SAVE = 'compiled.save("model.qgm")'
DIAGNOSE = "qg.diagnose(model, samples), or a limit: quantize_and_compile(…, max_drop=0.1)"
"""The next step in Python, after a close result and after one that is not."""

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


@dataclass(frozen=True, repr=False)
class Report(Concise, Tabular):
    """``print`` it in a terminal, show it in a notebook, or take ``to_json()``.

    ``compared_with`` names the source of the float results, ``samples`` is the number of compared
    samples and ``origin`` their source, ``right`` has the shares of labels that both models find;
    ``warnings`` are signs that the calibration data differs from the training data; ``seconds`` is
    the time of each stage; ``profile`` names the source of the ranges; ``programs`` are those of
    all shapes that came, where shapes are free; ``weights`` are their sizes in float and now,
    ``latency`` is measured with ``measure_latency``; a page shows ``graph`` and ``source``.

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
    graph: Graph | None = field(default=None, repr=False, compare=False)
    source: PageSource | None = field(default=None, repr=False, compare=False)

    def showing(self, graph: Graph) -> Report:
        """The report with the graph that a page draws."""
        return replace(self, graph=graph)

    def serving(self, programs: tuple[ServedShapes, ...]) -> Report:
        """The report with the programs of all shapes that came."""
        return replace(self, programs=programs)

    @property
    def headline(self) -> str:
        """The accuracy of int8 in words, or that nothing is; empty if no outputs were compared."""
        if self.is_all_float:
            return ALL_FLOAT_WARNING
        arguments = (self.samples, self.origin, self.right, bool(self.warnings), self.subject)
        return headline(self.outputs, *arguments) if self.layers else ""

    @property
    def is_all_float(self) -> bool:
        """Whether a model that was to be quantized has no int8 operator."""
        return NOTHING_QUANTIZED in self.notes

    @property
    def verdict(self) -> str:
        """The headline in a few words; empty if no outputs were compared."""
        return ALL_FLOAT if self.is_all_float else verdict(self.outputs)

    @property
    def subject(self) -> str:
        """The beginning of the headline: what is compared with float."""
        kinds = {layer.precision for layer in self.layers}
        weights = next((kind.partition(",")[0] for kind in kinds if " weights" in kind), "")
        return f"the model with {weights} is" if weights else "int8 is"

    def summary(self, next_step: str = "") -> Summary | None:
        """Accuracy, size, speed and the next step; None for a model that was not quantized."""
        if not self.layers:
            return None
        words = self.verdict
        good = is_close(words) or not words
        suspects = () if good else worst(self.layers, SUSPECTS)
        return Summary(
            self.headline,
            words,
            worst_sqnr_db(self.outputs),
            tuple(map(with_figure, suspects)),
            self._operators(),
            self.weights,
            self.latency,
            next_step or (SAVE if good else DIAGNOSE),
        )

    def _operators(self) -> dict[str, int]:
        """Number of operators by precision, most first; onnxruntime's are float."""
        counts = Counter(layer.precision for layer in self.layers)
        counts.update(f"in {node.backend}" for node in self.fallback)
        return dict(counts.most_common())

    @property
    def full(self) -> ShownReport:
        """The report with all its tables: every layer, codes, times of stages."""
        return ShownReport(self)

    @property
    def _shown(self) -> ShownReport:
        return ShownReport(self, all_layers=False)

    def opening(self) -> Iterator[str]:
        """The summary."""
        return self._shown.opening()

    def heading(self) -> Iterator[str]:
        """The warnings."""
        return self._shown.heading()

    def closing(self) -> Iterator[str]:
        """The next step."""
        return self._shown.closing()

    def _repr_html_(self) -> str:
        return self._shown._repr_html_()

    def tables(self, all_layers: bool = False) -> Iterator[Table]:
        """The tables that matter, or all: see ``full``."""
        yield from self._all_tables() if all_layers or not self.layers else self._short_tables()

    def _short_tables(self) -> Iterator[Table]:
        if self.outputs:
            yield self._outputs_table()
        if found := worst(self.layers, SHOWN):
            yield worst_tables(found)[0]
        if kept := [layer for layer in self.layers if layer.precision == "float"]:
            yield float_table(kept).cut(SHOWN)
        if self.precision_overrides:
            yield overrides_table(self.precision_overrides).cut(SHOWN)
        if slower := [speed for speed in self.speeds if speed.precision == "float"]:
            yield speed_table(slower).cut(SHOWN)
        if self.fallback:
            yield fallback_table(self.fallback).cut(SHOWN)

    def _outputs_table(self) -> Table:
        title = f"Outputs against {self.compared_with}, {self.samples} sample(s) {self.origin}"
        return outputs_table(title.rstrip(), self.outputs)

    def _all_tables(self) -> Iterator[Table]:
        if self.outputs:
            yield self._outputs_table()
        if found := worst(self.layers):
            yield from worst_tables(found)
        if self.layers:
            yield layers_table(self.layers)
        if self.precision_overrides:
            yield overrides_table(self.precision_overrides)
        if self.speeds:
            yield speed_table(self.speeds)
        if self.fallback:
            yield fallback_table(self.fallback)
        if self.programs:
            yield programs_table(self.programs)
        yield _summary_table(self)

    def to_json(self) -> dict[str, Any]:
        """The report in types that ``json`` writes; infinite figures become ``"inf"``."""
        return without_page(self)

    def to_html(self, trace: TraceLike = None) -> str:
        """The page that explains the model: graph, advice, tables, histograms, timeline.

        It needs no other file, and holds none of the samples.  ``trace`` is a timeline, or the path
        of one that ``compiled.trace`` wrote.  Raises ``FileFormatError`` for what is none.
        """
        words = self.summary()
        verdict = "" if words is None else "\n".join(words.lines())
        notes, rows = (*self.warnings, *self.notes), [*_summary_rows(self)]
        figures = Figures(self.layers, self.outputs, self.speeds, verdict, notes, rows)
        return page_of(self.graph, self.source, figures, trace)

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


def report_of(build: Build, seconds: Mapping[str, float]) -> Report:
    """The report of a build; ``seconds`` are the stages before it."""
    figures = [plan.figures for plan in build.plans]
    return Report(
        target=build.target,
        num_threads=build.num_threads,
        memory=MemoryFigures(
            sum(found.peak_nbytes for found in figures),
            sum(found.lower_bound_nbytes for found in figures),
            sum(found.constant_nbytes for found in figures),
        ),
        seconds={**seconds, **build.seconds},
        fallback=build.fallback,
    )


def _summary_table(report: Report) -> Table:
    return Table("Compilation", ("what", "figure"), list(_summary_rows(report)))


def _summary_rows(report: Report) -> Iterator[tuple[str, str]]:
    memory = report.memory
    yield "target", f"{report.target}, {report.num_threads} thread(s)"
    if memory == MemoryFigures() and (report.fallback or not report.seconds):
        yield "memory", "onnxruntime's" if report.fallback else "planned at first calls of shapes"
    else:
        yield "activations", f"{nbytes_text(memory.peak_nbytes)} in one arena"
        bound = f"{nbytes_text(memory.lower_bound_nbytes)}, efficiency {memory.efficiency:.1%}"
        yield "lower bound", bound
        yield "constants", nbytes_text(memory.constants_nbytes)
    if report.profile:
        yield "profile", ", ".join(f"{value} {key}" for key, value in report.profile.items())
    yield from ((f"time: {stage}", f"{spent:.3f} s") for stage, spent in report.seconds.items())


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
    )


@dataclass(frozen=True)
class ShownReport(Tabular):
    """``print`` it, or show it in a notebook; ``next_step`` replaces the report's own."""

    report: Report
    all_layers: bool = True
    next_step: str = ""

    @property
    def notes(self) -> tuple[str, ...]:  # type: ignore[override]
        """The report's notes."""
        return self.report.notes

    @property
    def summary(self) -> Summary | None:
        """The lines at the end; None for a model that was not quantized."""
        return self.report.summary(self.next_step)

    def tables(self) -> Iterator[Table]:
        """All tables, or those that matter."""
        return self.report.tables(self.all_layers)

    def opening(self) -> Iterator[str]:
        """The summary."""
        if self.summary is not None:
            yield from self.summary.figures()

    def heading(self) -> Iterator[str]:
        """The warnings."""
        yield from (f"Warning: {warning}" for warning in self.report.warnings)

    def closing(self) -> Iterator[str]:
        """The next step."""
        if self.summary is not None:
            yield self.summary.step

    def _repr_html_(self) -> str:
        """The summary with bars, warnings and notes; tables that unfold."""
        own = [self.summary.html()] if self.summary is not None else []
        lines = [*self.heading(), *(f"Note: {note}" for note in self.notes)]
        texts = [f"<p>{html.escape(line)}</p>" for line in lines]
        return "\n".join([*own, *texts, *map(folded, self.report.tables(True))])


def folded(table: Table) -> str:
    """A table behind its title."""
    return f"<details><summary>{html.escape(table.title)}</summary>{table.html()}</details>"

"""Report: what a compilation did, how exact its result is, what it costs."""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult

from quantglow.errors import FileFormatError
from quantglow.report.tables import Table, nbytes_text, number

TERMINAL_WIDTH = 110
"""Columns of ``str(report)``."""


@dataclass(frozen=True)
class OutputAccuracy:
    """One output against the float model; ``top1_agreement`` where it looks like classes."""

    name: str
    sqnr_db: float
    cosine: float
    max_error: float
    top1_agreement: float | None = None


@dataclass(frozen=True)
class LayerAccuracy:
    """One operator of the float graph.

    ``sqnr_local_db``: of its integer form alone, on exact operands.  ``sqnr_accumulated_db``: with
    the errors of all layers before it.  None where its value no longer exists by itself (it was
    merged into the operator behind it), or where nothing was measured.
    """

    name: str
    op: str
    precision: str
    reason: str = ""
    sqnr_local_db: float | None = None
    sqnr_accumulated_db: float | None = None


@dataclass(frozen=True)
class MemoryFigures:
    """The static plan: arena size, and the least any plan of this schedule could take."""

    peak_nbytes: int = 0
    lower_bound_nbytes: int = 0
    constants_nbytes: int = 0

    @property
    def efficiency(self) -> float:
        """Lower bound over peak; 1.0 is optimal."""
        return self.lower_bound_nbytes / self.peak_nbytes if self.peak_nbytes else 1.0


@dataclass(frozen=True)
class Report:
    """``print`` it in a terminal, show it in a notebook, or take ``to_json()``.

    ``compared_with`` names what gave the float results, ``samples`` how many were compared;
    ``seconds`` the time of each stage; ``profile`` what the ranges came from.
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

    def tables(self) -> Iterator[Table]:
        """The report as tables."""
        if self.outputs:
            yield _outputs_table(self)
        if self.layers:
            yield _layers_table(self.layers)
        yield _summary_table(self)

    def to_json(self) -> dict[str, Any]:
        """The report in types that ``json`` writes; infinite figures become ``"inf"``."""
        return dict(_plain(asdict(self)))

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Report:
        """What ``to_json`` gave.  Raises ``FileFormatError``."""
        try:
            return _from_json(data)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FileFormatError(
                f"the report is damaged: {error!r}. Remedy: save the model again."
            ) from error

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for table in self.tables():
            yield table.rich()
        for note in self.notes:
            yield f"Note: {note}"

    def __str__(self) -> str:
        console = Console(file=io.StringIO(), width=TERMINAL_WIDTH, color_system=None)
        console.print(self, highlight=False)
        assert isinstance(console.file, io.StringIO)
        return console.file.getvalue()

    def _repr_html_(self) -> str:
        notes = Table("Notes", ("note",), [(note,) for note in self.notes])
        tables = [*self.tables(), *([notes] if self.notes else [])]
        return "\n".join(table.html() for table in tables)


def _outputs_table(report: Report) -> Table:
    rows = [
        (
            o.name,
            number(o.sqnr_db),
            number(o.cosine, "{:.6f}"),
            number(o.max_error, "{:.4g}"),
            number(o.top1_agreement, "{:.1%}"),
        )
        for o in report.outputs
    ]
    numbers = ("SQNR dB", "cosine", "max error", "top-1 agreement")
    title = f"Outputs against {report.compared_with}, {report.samples} samples"
    return Table(title, ("output", *numbers), rows, frozenset(numbers))


def _layers_table(layers: tuple[LayerAccuracy, ...]) -> Table:
    rows = [
        (
            layer.name,
            layer.op,
            layer.precision,
            number(layer.sqnr_local_db),
            number(layer.sqnr_accumulated_db),
            layer.reason,
        )
        for layer in layers
    ]
    counts = Counter(layer.precision for layer in layers)
    title = "Layers: " + ", ".join(f"{n} {kind}" for kind, n in sorted(counts.items()))
    numbers = ("local dB", "accumulated dB")
    columns = ("layer", "op", "precision", *numbers, "why float")
    return Table(title, columns, rows, frozenset(numbers))


def _summary_table(report: Report) -> Table:
    memory = report.memory
    rows = [
        ("target", f"{report.target}, {report.num_threads} thread(s)"),
        ("activations", f"{nbytes_text(memory.peak_nbytes)} in one arena"),
        (
            "lower bound",
            f"{nbytes_text(memory.lower_bound_nbytes)}, efficiency {memory.efficiency:.1%}",
        ),
        ("constants", nbytes_text(memory.constants_nbytes)),
    ]
    if report.profile:
        shown = ", ".join(f"{value} {key}" for key, value in report.profile.items())
        rows.append(("profile", shown))
    rows += [(f"time: {stage}", f"{spent:.3f} s") for stage, spent in report.seconds.items()]
    return Table("Compilation", ("what", "figure"), rows)


def _plain(value: Any) -> Any:
    """Nested plain data in which every float is finite."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _from_json(data: Mapping[str, Any]) -> Report:
    if unknown := set(data) - {f.name for f in fields(Report)}:
        raise ValueError(f"unknown entries {sorted(unknown)}")
    return Report(
        target=str(data["target"]),
        num_threads=int(data["num_threads"]),
        memory=MemoryFigures(**{key: int(value) for key, value in data["memory"].items()}),
        seconds={str(key): float(value) for key, value in data["seconds"].items()},
        outputs=tuple(OutputAccuracy(**_figures(o)) for o in data["outputs"]),
        layers=tuple(LayerAccuracy(**_figures(layer)) for layer in data["layers"]),
        profile=dict(data["profile"]),
        compared_with=str(data["compared_with"]),
        samples=int(data["samples"]),
        notes=tuple(map(str, data["notes"])),
    )


_TEXTS = ("name", "op", "precision", "reason")


def _figures(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Texts as texts, everything else as a float or None."""
    return {
        key: str(value) if key in _TEXTS else None if value is None else float(value)
        for key, value in entry.items()
    }

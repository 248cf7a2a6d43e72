"""Baseline quantizers, and the comparison of their int8 models: accuracy, latency, size and time.

Each step of another quantizer runs in a child process of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from quantglow.evaluation.accuracy import OutputAccuracy, plain, worst_sqnr_db
from quantglow.ort.float_results import Outputs, flatten_samples, group_outputs
from quantglow.ort.quantizer_input import with_logits
from quantglow.ort.session import EXACT_SUMS
from quantglow.support.arrays import Array
from quantglow.support.processes.isolation import call_isolated
from quantglow.support.views import HasView, show

ONNXRUNTIME = "quantglow.evaluation.baselines.onnxruntime_quantizer:quantize"

FLOAT = "onnxruntime float"
"""The row of the float model, which the outputs of all others are compared with."""


@dataclass(frozen=True)
class BaselineQuantizer:
    """A quantizer and the runtime of its models.

    ``place`` quantizes and ``outputs`` runs, each in a child; ``packages`` are for pip; ``suffix``
    is that of its files; ``options`` and ``run_options`` go to the two functions;
    ``exact_options`` stand in for the latter where users have to ask for exact sums.
    """

    name: str
    runtime: str
    packages: str
    place: str
    outputs: str
    suffix: str
    options: Mapping[str, Any] = field(default_factory=dict)
    run_options: Mapping[str, Any] = field(default_factory=dict)
    exact_options: Mapping[str, Any] | None = None

    def quantize(
        self, source: Path, target: Path, samples: Sequence[Mapping[str, Array]], seconds: float
    ) -> float:
        """Write the int8 model; its seconds.  Raises ``IsolationError``."""
        names = list(samples[0])
        facts = {"source": str(source), "target": str(target), "names": names, **self.options}
        (spent,) = call_isolated(
            self.place, flatten_samples(samples, names), facts, seconds=seconds
        )
        return float(spent)

    def run(
        self,
        path: Path,
        samples: Sequence[Mapping[str, Array]],
        seconds: float,
        *,
        is_exact: bool = False,
    ) -> Outputs:
        """All outputs of each sample, as users get them, or with exact sums, then the logits of
        those that hide them.  Raises ``IsolationError``."""
        names = list(samples[0])
        options = (self.exact_options if is_exact else None) or self.run_options
        path = with_logits(path) if path.suffix == ".onnx" else path
        facts = {"path": str(path), "names": names, **options}
        arrays = call_isolated(
            self.outputs, flatten_samples(samples, names), facts, seconds=seconds
        )
        return group_outputs(arrays, len(samples))


def by_onnxruntime(method: str) -> BaselineQuantizer:
    """onnxruntime's static quantizer with one of its calibrators."""
    return BaselineQuantizer(
        f"onnxruntime-{method.lower()}",
        "onnxruntime",
        "onnxruntime",
        ONNXRUNTIME,
        "quantglow.ort.session:outputs",
        ".onnx",
        {"method": method},
        {"optimize": True, "exact_sums": False},
        {"optimize": True, "exact_sums": True},
    )


NNCF = BaselineQuantizer(
    "nncf",
    "openvino",
    "openvino nncf",
    "quantglow.evaluation.baselines.openvino_quantizer:quantize",
    "quantglow.evaluation.baselines.openvino_quantizer:outputs",
    ".xml",
)

PEER_QUANTIZERS = {
    quantizer.name: quantizer
    for quantizer in (*map(by_onnxruntime, ("MinMax", "Percentile", "Entropy")), NNCF)
}


def file_nbytes(path: Path) -> int:
    """Bytes of a model and of the weights beside it, which have its stem."""
    return sum(each.stat().st_size for each in path.parent.glob(f"{path.stem}.*"))


@dataclass(frozen=True)
class QuantizerFigures:
    """A row: what is known of a quantizer's model, and the ``reason`` for what is not.

    ``sqnr_db`` and ``agreement`` are those of the worst of ``outputs``, on samples that calibration
    did not see; their logits count where all rows have them.  ``exact_sqnr_db`` is the former with
    exact sums, if users have to ask for these here; ``nbytes`` is the size of its file,
    ``calibration_seconds`` the time from float to int8.
    """

    name: str
    sqnr_db: float | None = None
    agreement: float | None = None
    seconds: float | None = None
    nbytes: int | None = None
    calibration_seconds: float | None = None
    exact_sqnr_db: float | None = None
    reason: str = ""
    outputs: tuple[OutputAccuracy, ...] = field(default=(), repr=False)
    exact_outputs: tuple[OutputAccuracy, ...] = field(default=(), repr=False)

    def measured(self, positions: Collection[int]) -> QuantizerFigures:
        """The figures of the worst output, with logits of the outputs at some positions only."""

        def chosen(outputs: Sequence[OutputAccuracy]) -> tuple[OutputAccuracy, ...]:
            return tuple(
                o if p in positions else replace(o, logits_db=None) for p, o in enumerate(outputs)
            )

        outputs, exact = chosen(self.outputs), chosen(self.exact_outputs)
        answers = [o.top1_agreement for o in outputs if o.top1_agreement is not None]
        return replace(
            self,
            outputs=outputs,
            exact_outputs=exact,
            sqnr_db=worst_sqnr_db(outputs),
            exact_sqnr_db=worst_sqnr_db(exact),
            agreement=min(answers) if answers else None,
        )

    @property
    def caveat(self) -> str:
        """A note on sums that are not exact, or nothing."""
        if self.exact_sqnr_db is None:
            return ""
        return (
            f"{self.name}: sums saturate at 16 bits on this processor; {self.exact_sqnr_db:.1f} dB "
            f'with the session option {EXACT_SUMS}="1", which is slower'
        )


@dataclass(frozen=True)
class QuantizerComparison(HasView):
    """``print`` it, show it in a notebook, or take ``to_json()``.

    ``rows`` are the float model, quantglow, and the others; ``origin`` says which ``samples`` the
    outputs were compared on; ``busy`` is a note on other work of the machine.
    """

    rows: Sequence[QuantizerFigures]
    samples: int
    origin: str
    num_threads: int
    busy: str = ""

    @property
    def notes(self) -> tuple[str, ...]:
        """Reasons of those that failed, inexact sums, and the note on a busy machine."""
        failed = (f"{row.name}: {row.reason}" for row in self.rows if row.reason)
        caveats = filter(None, (row.caveat for row in self.rows))
        return (*failed, *caveats, *([f"latencies are doubtful: {self.busy}"] if self.busy else []))

    @property
    def verdict(self) -> str:
        """A sentence on accuracy and one on latency: quantglow beside the best of the others."""
        return str(show(self).verdict)

    def to_json(self) -> dict[str, Any]:
        """The figures in types that ``json`` writes."""
        outputs = ("outputs", "exact_outputs")
        rows = [
            plain({k: v for k, v in vars(row).items() if k not in outputs}) for row in self.rows
        ]
        facts = {"samples": self.samples, "origin": self.origin, "num_threads": self.num_threads}
        return {"verdict": self.verdict, "rows": rows, **facts, "busy": self.busy}


def of_one_mechanism(rows: Sequence[QuantizerFigures]) -> list[QuantizerFigures]:
    """The rows with the figures of their outputs; logits count where all that ran have them."""
    ran = [outputs for row in rows for outputs in (row.outputs, row.exact_outputs) if outputs]
    by_output = (outputs for outputs in zip(*ran, strict=True))
    positions = {
        p for p, all_of in enumerate(by_output) if None not in [o.logits_db for o in all_of]
    }
    return [row.measured(positions) if row.outputs else row for row in rows]

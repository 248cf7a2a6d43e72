"""Other quantizers on a model and samples, each step in a child process of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quantglow.foreign_types import Array
from quantglow.frontend.onnxruntime.logit_outputs import with_logits
from quantglow.processes.isolation import called
from quantglow.report.accuracy.onnxruntime_check import Outputs, grouped
from quantglow.report.accuracy.sample_arrays import arrays_of

ONNXRUNTIME = "quantglow.report.peers.onnxruntime_quantizer:quantized"


@dataclass(frozen=True)
class PeerQuantizer:
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
        (spent,) = called(self.place, arrays_of(samples, names), facts, seconds=seconds)
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
        arrays = called(self.outputs, arrays_of(samples, names), facts, seconds=seconds)
        return grouped(arrays, len(samples))


def by_onnxruntime(method: str) -> PeerQuantizer:
    """onnxruntime's static quantizer with one of its calibrators."""
    return PeerQuantizer(
        f"onnxruntime-{method.lower()}",
        "onnxruntime",
        "onnxruntime",
        ONNXRUNTIME,
        "quantglow.backends.onnxruntime.apart:outputs",
        ".onnx",
        {"method": method},
        {"optimize": True, "exact_sums": False},
        {"optimize": True, "exact_sums": True},
    )


NNCF = PeerQuantizer(
    "nncf",
    "openvino",
    "openvino nncf",
    "quantglow.report.peers.openvino_quantizer:quantized",
    "quantglow.report.peers.openvino_quantizer:outputs",
    ".xml",
)

PEER_QUANTIZERS = {
    found.name: found for found in (*map(by_onnxruntime, ("MinMax", "Percentile", "Entropy")), NNCF)
}


def file_nbytes(path: Path) -> int:
    """Bytes of a model and of the weights beside it, which have its stem."""
    return sum(each.stat().st_size for each in path.parent.glob(f"{path.stem}.*"))

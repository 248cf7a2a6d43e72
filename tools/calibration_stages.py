"""The stages of a calibration, written on one processor and compared on another.

::

    python -m tools.calibration_stages ppocr_cls --write here.json
    python -m tools.calibration_stages ppocr_cls --compare here.json    # elsewhere

says of each stage how many of its entries differ, and the first one: float values of a sample,
minima and maxima of the profile, noise of each candidate of the search, factors and ranges of the
chosen one, parameters of the plan, weights rounded to nearest, and those rounded against samples.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

import quantglow as qg
from quantglow import interpreter
from quantglow.api.import_model import open_float_graph
from quantglow.api.pipeline.request import computing
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Node
from quantglow.profiling import Profile
from quantglow.profiling.samples.feeds import Feeds
from quantglow.quantization.equalize.sample_statistics import FloatRuns
from quantglow.quantization.options import COMPILED, PROFILES_WITH, ProfileWith
from quantglow.quantization.plan.plan import Plan
from quantglow.quantization.quantizer import Quantizer, draw_samples
from quantglow.quantization.search import levers as preparation
from quantglow.quantization.search.trials import Candidate, Trials, split
from quantglow.support.arrays import Array
from tools.hashed_networks import NETWORKS

Stage = dict[str, str]
"""Name -> value as text."""


@dataclass
class RecordedTrials(Trials):
    """Trials that keep the noise of every candidate."""

    noises: list[float] = field(default_factory=list)

    def measure_noise(self, candidate: Candidate) -> float:
        self.noises.append(super().measure_noise(candidate))
        return self.noises[-1]


def stages(name: str, profile_with: ProfileWith = COMPILED) -> Iterator[tuple[str, Stage]]:
    """The stages of a network's calibration, in their order."""
    network = NETWORKS[name]
    data = network.feeds(network.calibration)
    shapes = {key: x.shape for key, x in data[0].items()}
    graph = qg.import_model(network.source(), input_shapes=shapes)
    yield "constants of the float graph", constants(graph)
    yield "values of a sample", values(graph, data[0])
    profile = qg.profile(graph, data, progress=False, profile_with=profile_with)
    yield "profile", extremes(profile)
    graph = open_float_graph(graph)
    config = qg.QuantizationConfig(quantize_output=True, **network.options)
    samples = draw_samples(data, graph, config.seed)
    candidate, noises = search(graph, profile, config, samples)
    yield "noise of candidates", {f"candidate {i}": exact(x) for i, x in enumerate(noises)}
    yield "factors", {key: digest_of(value) for key, value in candidate.factors.items()}
    yield "ranges", {key: f"{exact(r.low)} {exact(r.high)}" for key, r in candidate.ranges.items()}
    quantizer = Quantizer(candidate, config, samples, progress=False)
    yield "plan", elements(quantizer.plan())
    plain = replace(quantizer, config=replace(config, recovery=()))
    yield "weights rounded to nearest", constants(plain.run().graph)
    yield "weights rounded against samples", constants(quantizer.run().graph)


def search(
    graph: Graph, profile: Profile, config: qg.QuantizationConfig, samples: Sequence[Feeds]
) -> tuple[Candidate, list[float]]:
    """The chosen candidate, and the noise of all."""
    parts = split(samples, config.seed)
    trials = RecordedTrials(Candidate(graph, profile), config, *parts, FloatRuns(graph))
    for _ in preparation.steps(trials):
        pass
    return trials.best, trials.noises


def exact(value: float) -> str:
    """A float with all of its bits, and readable."""
    return f"{value:.6g} ({float(value).hex()})"


def digest_of(array: Array) -> str:
    """The beginning of the SHA-256 of an array."""
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]


def constants(graph: Graph) -> Stage:
    """Hashes of all constants."""
    return {n.name: digest_of(n.value) for n in graph.nodes if isinstance(n, Constant)}


def values(graph: Graph, feeds: Feeds) -> Stage:
    """Hashes of all values of a run, with their operators."""
    actual: Stage = {}

    def listener(node: Node, value: Array) -> None:
        actual[node.name] = f"{node.op} {digest_of(value)}"

    interpreter.interpret(graph, feeds, [listener])
    return actual


def extremes(profile: Profile) -> Stage:
    """Minimum and maximum of each value."""
    pairs = profile.histograms.items()
    return {name: f"{exact(h.minimum)} {exact(h.maximum)}" for name, h in pairs}


def elements(plan: Plan) -> Stage:
    """The integer type of each value."""
    return {node.name: str(element) for node, element in plan.element_types.items()}


def differences(before: Stage, after: Stage) -> list[str]:
    """Entries that differ, with both texts."""
    names = dict.fromkeys([*before, *after])
    return [
        f"{name}: {before.get(name, 'none')} | {after.get(name, 'none')}"
        for name in names
        if before.get(name) != after.get(name)
    ]


def show(stage: str, before: Stage, after: Stage, most: int) -> None:
    """Print how a stage differs."""
    actual = differences(before, after)
    print(f"{stage}: {len(actual)} of {len(after)} differ", flush=True)
    for line in actual[:most]:
        print(f"    {line}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.calibration_stages")
    parser.add_argument("name", choices=NETWORKS)
    files = parser.add_mutually_exclusive_group(required=True)
    files.add_argument("--write", type=Path, metavar="FILE.json")
    files.add_argument("--compare", type=Path, metavar="FILE.json")
    parser.add_argument("--most", type=int, default=3, help="entries shown of each stage")
    parser.add_argument("--until", default="", metavar="STAGE", help="the last one compared")
    parser.add_argument("--profile-with", choices=PROFILES_WITH, default=COMPILED)
    options = parser.parse_args()
    with computing(options.profile_with):
        if options.write:
            options.write.write_text(
                json.dumps(dict(stages(options.name, options.profile_with)), indent=1) + "\n"
            )
            return
        before = json.loads(options.compare.read_text())
        for stage, entries in stages(options.name, options.profile_with):
            show(stage, before[stage], entries, options.most)
            if stage == options.until:
                break


if __name__ == "__main__":
    main()

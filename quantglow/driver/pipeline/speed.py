"""``measure_speed``: times of layers; those that int8 makes slower here stay float."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from quantglow import debug
from quantglow.driver.pipeline.prepared import Prepared, excluding
from quantglow.driver.pipeline.quantized import Quantized, rounded_to_nearest
from quantglow.report.speed.call_report import timed_calls
from quantglow.report.speed.speed import (
    LayerSpeed,
    SpeedSearch,
    layer_speeds,
    slower,
    time_ratio,
    with_float,
)
from quantglow.runtime.build import Build, Compiler
from quantglow.timeline import recording


def without_slower(prepared: Prepared, compiler: Compiler) -> Prepared:
    """The prepared model with those layers excluded that int8 would make slower, as measured.

    Raises ``CalibrationError`` if there is no sample to run.
    """
    calibrated = prepared.calibrated
    calibrated.require_samples("speed", "measure_speed")
    feeds = calibrated.checks.feeds[0]

    def build(kept_float: Sequence[str]) -> Build:
        # Without samples: rounding weights against data takes long, and changes no time.
        config = excluding(prepared.config, kept_float)
        graph = rounded_to_nearest(prepared, config).graph
        return compiler.compile(graph, skip_branches=False)

    with debug.timed("measure speed", calibrated.seconds):
        layers = rounded_to_nearest(prepared, prepared.config).report.nodes
        floats = compiler.compile(calibrated.float_graph, skip_branches=False)
        integers = [n for n in layers if n.precision != "float"]
        speeds = layer_speeds(integers, timed_calls(floats, feeds), timed_calls(build(()), feeds))
        kept = SpeedSearch(
            lambda names: build(names).executable,
            lambda one, other: time_ratio(one, other, feeds),
            deadline=prepared.deadline.halfway,
        ).run(slower(speeds), [speed.name for speed in speeds])
    config = excluding(prepared.config, kept)
    return replace(prepared, config=config, speeds=with_float(speeds, kept))


def timed_layers(
    quantized: Quantized, compiler: Compiler
) -> tuple[tuple[LayerSpeed, ...], dict[str, Any]]:
    """The times of all layers in float and as quantized, and the timeline of a run, in Chrome's
    format.

    Raises ``BackendError`` where a graph has no program of kernels.
    """
    calibrated, found = quantized.calibrated, quantized.main
    feeds = calibrated.checks.feeds[0]
    floats, integers = (
        compiler.compile(graph, skip_branches=False)
        for graph in (calibrated.float_graph, found.graph)
    )
    speeds = layer_speeds(
        found.report.nodes, timed_calls(floats, feeds), timed_calls(integers, feeds)
    )
    with recording() as trace:
        integers.executable.run(feeds)
    return speeds, trace.to_json()

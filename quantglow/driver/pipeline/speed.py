"""``measure_speed``: layers that int8 makes slower here stay float."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from quantglow import debug
from quantglow.driver.pipeline.prepared import Prepared, excluding
from quantglow.driver.pipeline.quantized import rounded_to_nearest
from quantglow.report.call_report import timed_calls
from quantglow.report.speed import SpeedSearch, layer_speeds, slower, time_ratio, with_float
from quantglow.runtime.build import Build, Compiler


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
        times = (
            timed_calls(compiler.compile(calibrated.float_graph, skip_branches=False), feeds),
            timed_calls(build(()), feeds),
        )
        speeds = layer_speeds([n for n in layers if n.precision != "float"], *times)
        kept = SpeedSearch(
            lambda names: build(names).executable,
            lambda one, other: time_ratio(one, other, feeds),
            deadline=prepared.deadline.halfway,
        ).run(slower(speeds), [speed.name for speed in speeds])
    config = excluding(prepared.config, kept)
    return replace(prepared, config=config, speeds=with_float(speeds, kept))

"""quantglow as a user calls it, through its public names."""

from __future__ import annotations

import quantglow as qg
from benchmarks.models import Network
from benchmarks.runtimes import Runtime, shaped


def quantglow_float(network: Network, threads: int, batch: int, samples: int) -> Runtime:
    """The float model compiled for this processor; ``samples`` is not needed."""
    compiled = qg.compile(shaped(network, batch), num_threads=threads)
    return Runtime("quantglow float", lambda feeds: list(compiled.run(None, feeds)))


def quantglow_int8(network: Network, threads: int, batch: int, samples: int) -> Runtime:
    """Calibrated on ``samples`` samples with min-max ranges, as the peers are."""
    feeds = network.feeds(samples, batch=batch)
    compiled = qg.quantize_and_compile(
        shaped(network, batch),
        feeds,
        calibrate_method="minmax",
        num_threads=threads,
        verify=False,
    )
    return Runtime("quantglow int8", lambda feeds: list(compiled.run(None, feeds)))

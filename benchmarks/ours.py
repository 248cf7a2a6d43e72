"""quantglow as a user calls it, through its public names."""

from __future__ import annotations

import quantglow as qg
from benchmarks.models import Network
from benchmarks.runtimes import Runtime, shaped


def float_model(network: Network, threads: int, batch: int, samples: int) -> qg.CompiledModel:
    """The float model compiled for this processor; ``samples`` is not needed."""
    return qg.compile(shaped(network, batch), num_threads=threads)


def int8_model(network: Network, threads: int, batch: int, samples: int) -> qg.CompiledModel:
    """Calibrated on ``samples`` samples with min-max ranges, as the peers are."""
    return qg.quantize_and_compile(
        shaped(network, batch),
        network.calibration(samples, batch),
        calibrate_method="minmax",
        num_threads=threads,
        verify=False,
    )


def quantglow_float(network: Network, threads: int, batch: int, samples: int) -> Runtime:
    return ready("quantglow float", float_model(network, threads, batch, samples))


def quantglow_int8(network: Network, threads: int, batch: int, samples: int) -> Runtime:
    return ready("quantglow int8", int8_model(network, threads, batch, samples))


def ready(name: str, compiled: qg.CompiledModel) -> Runtime:
    """A compiled model as a runtime."""
    seconds = sum(compiled.build.seconds.values())
    return Runtime(name, lambda feeds: list(compiled.run(None, feeds)), seconds)

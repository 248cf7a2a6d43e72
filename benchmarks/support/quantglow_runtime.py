"""quantglow as a user calls it, through its public names."""

from __future__ import annotations

from pathlib import Path

import quantglow as qg
from benchmarks.networks import registry
from benchmarks.networks.network import Network
from benchmarks.support.runtime import Runtime, shaped


def compiled_whole(model: qg.CompiledModel | qg.FallbackModel) -> qg.CompiledModel:
    """A model that quantglow compiled from its inputs to its outputs."""
    assert isinstance(model, qg.CompiledModel), f"onnxruntime runs a part of it: {model}"
    return model


def report_of(model: qg.CompiledModel | qg.FallbackModel) -> qg.Report:
    """The report, with all its figures."""
    report = model.report
    assert isinstance(report, qg.Report)
    return report


def float_model(network: Network, threads: int, batch: int, samples: int) -> qg.CompiledModel:
    """The float model compiled for this processor; ``samples`` is not used."""
    return compiled_whole(qg.compile(shaped(network, batch), num_threads=threads))


def int8_model(network: Network, threads: int, batch: int, samples: int) -> qg.CompiledModel:
    """The int8 model, calibrated on ``samples`` samples with min-max ranges, as the peers are."""
    return compiled_whole(
        qg.quantize_and_compile(
            shaped(network, batch),
            network.calibration(samples, batch),
            calibrate_method="minmax",
            num_threads=threads,
            verify=False,
        )
    )


def compiled_model(
    name: str, precision: str, threads: int, batch: int, samples: int
) -> qg.CompiledModel:
    """The network as the latency benchmark runs it."""
    maker = {"int8": int8_model, "float": float_model}[precision]
    return maker(registry.network(name), threads, batch, samples)


def quantglow_float(network: Network, threads: int, batch: int, samples: int) -> Runtime:
    return ready("quantglow float", float_model(network, threads, batch, samples))


def quantglow_int8(network: Network, threads: int, batch: int, samples: int) -> Runtime:
    return ready("quantglow int8", int8_model(network, threads, batch, samples))


def saved_model_file(folder: Path, network: str, quantizer: str) -> Path:
    """Path of a quantized model in ``folder``, by network and quantizer."""
    return folder / f"{network}.{quantizer.replace(' ', '-')}.qgm"


def ready(name: str, compiled: qg.CompiledModel) -> Runtime:
    """A compiled model as a runtime."""
    seconds = sum(compiled.build.seconds.values())
    return Runtime(name, lambda feeds: list(compiled.run(None, feeds)), seconds)

"""Quantize one network with one quantizer, in a process of its own.

Arguments: QUANTIZER NETWORK SAMPLES THREADS OUTPUTS.npy NBYTES [FOLDER].  Prints one line of JSON:
``seconds`` of quantization, ``start_nbytes`` resident before it (libraries, model file and
samples), ``peak_nbytes`` resident at most until it ended.  Writes the first output of every
evaluation sample.  ``NBYTES`` limits memory (0: no limit), ``FOLDER`` receives the model.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks.accuracy import quantizers
from benchmarks.accuracy.evaluation import evaluation, first_outputs
from benchmarks.accuracy.quantizers import NotInstalledError
from benchmarks.networks import registry
from benchmarks.support.process_memory import status_nbytes
from benchmarks.support.quantglow_runtime import saved_model_file

MISSING = 3
"""Exit code if packages are not installed."""


def limit_memory(nbytes: int) -> None:
    """Make allocations beyond ``nbytes`` fail, before the machine starts to swap."""
    resource.setrlimit(resource.RLIMIT_DATA, (nbytes, nbytes))


def main(
    quantizer: str, network_name: str, samples: int, threads: int, target: Path, saved: Path | None
) -> None:
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keeps the output of libraries out of the reply
    one = quantizers.QUANTIZERS[quantizer]
    one.require()
    for package in one.needs:
        __import__(package)
    network = registry.network(network_name)
    feeds = network.feeds(samples)
    before = status_nbytes("VmRSS")
    start = time.perf_counter()
    runtime = one.quantize(network, feeds, threads)
    seconds = time.perf_counter() - start
    figures = {"seconds": seconds, "start_nbytes": before, "peak_nbytes": status_nbytes("VmHWM")}
    if saved is not None and runtime.save is not None:
        runtime.save(saved)
    np.save(target, first_outputs(runtime, network, evaluation(network)[0]))
    print(json.dumps(figures), file=replies, flush=True)


if __name__ == "__main__":
    _, name, model, count, cores, file, limit, *folders = sys.argv
    if int(limit):
        limit_memory(int(limit))
    try:
        path = saved_model_file(Path(folders[0]), model, name) if folders else None
        main(name, model, int(count), int(cores), Path(file), path)
    except NotInstalledError as error:
        print(error, file=sys.stderr)
        sys.exit(MISSING)

"""Quantize and compile one model in a process that imports nothing else first.

Arguments: MODEL DATA THREADS BEGUN [PROFILE].  Prints the seconds of each stage as JSON: ``start``
is from ``BEGUN`` (``time.time()`` in the parent) until quantglow is imported, ``all`` until the
model is compiled, ``cpu`` the CPU time of all threads until then.  DATA is a file of samples
(.npz) or a stored profile; the recorded profile is stored in PROFILE after the clock has stopped.
"""

from __future__ import annotations

import json
import sys
import time

from benchmarks.support.process_memory import status_nbytes


def main(model: str, data: str, threads: int, begun: float, profile: str | None = None) -> None:
    import quantglow as qg

    call = qg.quantize_and_compile
    start = time.time() - begun
    compiled = call(model, data, num_threads=threads, verify=False, progress=False)
    whole = time.time() - begun
    report = compiled.report
    assert isinstance(report, qg.Report)
    seconds = {"start": start, **report.seconds, "all": whole, "cpu": time.process_time()}
    if profile is not None:
        assert isinstance(compiled, qg.CompiledModel) and compiled.profile is not None
        compiled.profile.save(profile)
    print(json.dumps({"seconds": seconds, "peak_nbytes": status_nbytes("VmHWM")}))


if __name__ == "__main__":
    _, file, samples, count, clock, *stored = sys.argv
    main(file, samples, int(count), float(clock), *stored)

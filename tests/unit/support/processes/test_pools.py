"""Threads compile and quantize as before where they go on after the main thread."""

from __future__ import annotations

import subprocess
import sys

import pytest

SERVICE = """
import threading
import numpy as np
import quantglow as qg
from tests.support.free_network import free_model

model = free_model()
samples = [np.random.default_rng(n).random((1, 3, 6, 6), np.float32) for n in range(4)]
compiled = qg.compile(model, num_threads=2)
compiled.run(None, {"x": samples[0]})

def work():
    threading.main_thread().join()
    compiled.run(None, {"x": np.zeros((2, 3, 9, 4), np.float32)})
    qg.compile(model, num_threads=2, input_shapes={"x": (1, 3, 7, 7)})
    qg.quantize_and_compile(model, samples, progress=False)
    print("done")

threading.Thread(target=work).start()
"""


@pytest.mark.slow
def test_threads_compile_after_the_main_thread_has_ended(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUANTGLOW_CACHE_DIR", str(tmp_path))
    results = subprocess.run(
        [sys.executable, "-c", SERVICE], capture_output=True, text=True, timeout=300, check=False
    )
    assert results.stdout.split() == ["done"], results.stderr

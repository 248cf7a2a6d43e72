"""The stack of Mamba blocks is compiled whole."""

from __future__ import annotations

import numpy as np
import onnxruntime

import quantglow as qg
from benchmarks.networks.mamba import MODEL, model

STEPS = 5


def test_blocks_compute_what_onnxruntime_computes_and_leave_it_nothing() -> None:
    network = model(STEPS, layers=1)
    feeds = {"x": np.random.default_rng(0).standard_normal((STEPS, MODEL)).astype(np.float32)}
    compiled = qg.compile(network)
    (expected,) = onnxruntime.InferenceSession(network.SerializeToString()).run(None, feeds)
    (actual,) = compiled.run(None, feeds)
    np.testing.assert_allclose(actual, np.asarray(expected), rtol=1e-4, atol=1e-4)
    assert not compiled.report.to_json()["fallback"]

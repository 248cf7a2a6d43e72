"""Models and queues belong to one process; reports are pickled."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import quantglow as qg
from tests.support.free_network import free_model

SAMPLES = [np.random.default_rng(n).random((1, 3, 6, 6), np.float32) for n in range(3)]


@pytest.fixture(scope="module")
def compiled() -> qg.CompiledModel:
    compiled = qg.quantize_and_compile(
        free_model(), SAMPLES, num_threads=1, effort="fast", progress=False
    )
    assert isinstance(compiled, qg.CompiledModel)
    return compiled


@pytest.mark.slow
def test_models_and_queues_say_that_they_cannot_be_copied(compiled: qg.CompiledModel) -> None:
    with qg.InferQueue(compiled) as queue:
        for each in (compiled, queue):
            for copied in (pickle.dumps, copy.copy, copy.deepcopy):
                with pytest.raises(qg.OptionError, match="cannot be pickled or copied"):
                    copied(each)


def test_a_report_is_pickled_by_its_figures(compiled: qg.CompiledModel) -> None:
    report = compiled.report
    again = pickle.loads(pickle.dumps(report))  # noqa: S301 - its own bytes
    assert again.to_json() == report.to_json()
    assert str(again) == str(report)
    assert copy.copy(report) is copy.deepcopy(report) is report

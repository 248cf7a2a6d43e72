"""Profiles by the workers of a Dask cluster equal those of one process, whichever workers die."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import distributed
import numpy as np
import pytest
from onnx.helper import make_node as node
from threadpoolctl import threadpool_info

import quantglow as qg
from quantglow.api.pipeline import distributed_profiling as profiling_on_workers
from quantglow.api.pipeline.distributed_profiling import TASK_NBYTES, TASK_SAMPLES, split_tasks
from quantglow.profiling.samples.feeds import Located
from tests.support.clusters import two_workers
from tests.unit.api.models.test_late_families import chosen_twice, with_chosen
from tests.unit.importer.onnx.onnx_models import floats, model_of

pytestmark = pytest.mark.filterwarnings("default")  # Dask's own, of its sockets

MNIST = Path(__file__).parents[4] / "datasets/mnist_cnn.onnx"
SAMPLES = [floats(1, 1, 28, 28) * scale for scale in np.linspace(0.1, 2, 40, dtype=np.float32)]


@pytest.fixture(scope="module")
def client() -> Iterator[distributed.Client]:
    """A client of a cluster of two processes."""
    with two_workers() as client:
        yield client


def bytes_of(profile: qg.Profile, path: Path) -> bytes:
    """The file of a profile."""
    profile.save(path)
    return path.read_bytes()


def test_the_profile_equals_that_of_one_process(client: Any, tmp_path: Path) -> None:
    profiled = qg.profile(MNIST, iter(SAMPLES), subset_size=30, client=client)
    expected = qg.profile(MNIST, SAMPLES, subset_size=30)
    assert profiled == expected
    assert bytes_of(profiled, tmp_path / "a") == bytes_of(expected, tmp_path / "b")


def test_the_profile_of_a_model_in_which_nodes_decide_sizes_is_whole(client: Any) -> None:
    samples = [with_chosen(some, some // 2, some) for some in (0, 1, 4, 7, 12)]
    profiled = qg.profile(chosen_twice(), samples, client=client)
    assert profiled == qg.profile(chosen_twice(), samples)
    assert "y1" in profiled and len(profiled.cases) == len(samples)


def test_a_worker_that_loaded_another_blas_is_like_the_others(client: Any) -> None:
    """SciPy has an OpenBLAS of its own, which is loaded by the first task that uses it."""
    pytest.importorskip("scipy", reason="SciPy is not installed")
    client.wait_for_workers(2)
    first = next(iter(client.scheduler_info()["workers"]))
    client.submit(load_scipy, workers=[first], pure=False).result()
    assert len({len(blas) for blas in client.run(loaded_blas).values()}) == 2
    assert qg.profile(MNIST, SAMPLES, client=client) == qg.profile(MNIST, SAMPLES)


def load_scipy() -> None:
    importlib.import_module("scipy.linalg")


def loaded_blas() -> list[str]:
    return [x["filepath"] for x in threadpool_info() if x["user_api"] == "blas"]


def test_an_array_may_be_filled_again_for_each_sample(client: Any) -> None:
    def refilled() -> Iterator[Any]:
        buffer = np.empty_like(SAMPLES[0])
        for sample in SAMPLES:
            buffer[...] = sample
            yield buffer

    assert qg.profile(MNIST, refilled(), client=client) == qg.profile(MNIST, SAMPLES)


@pytest.mark.slow
def test_workers_that_die_lose_nothing(client: Any) -> None:
    done = threading.Event()
    deaths: list[int] = []

    def samples() -> Iterator[Any]:
        for number, sample in enumerate(SAMPLES * 4):
            if number % 40 == 20:
                deaths.append(kill_one(client))
            yield sample
        done.set()

    profiled = qg.profile(MNIST, samples(), client=client)
    assert done.is_set()
    assert len(set(deaths)) == 4
    assert profiled == qg.profile(MNIST, SAMPLES * 4)


def kill_one(client: Any) -> int:
    """End a worker, and give its process number; Dask starts another one."""
    while True:
        with suppress(OSError):  # one that died a moment ago does not answer
            client.wait_for_workers(1)
            process = min(client.run(os.getpid).values())
            os.kill(process, signal.SIGKILL)
            return int(process)


def test_free_shapes_are_profiled_by_workers(client: Any) -> None:
    model = model_of([node("Relu", ["x"], ["y"])], {"x": floats(1, 4)}, ["y"])
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "N"
    model.graph.output[0].type.tensor_type.ClearField("shape")
    samples = [floats(1, 1 + number % 5) for number in range(20)]
    assert qg.profile(model, samples, client=client) == qg.profile(model, samples)


def test_an_error_names_the_sample(client: Any) -> None:
    samples = [*SAMPLES[:9], SAMPLES[0] * np.float32("nan")]
    with pytest.raises(qg.CalibrationError, match="sample 9 has 784 NaN"):
        qg.profile(MNIST, samples, client=client)


def test_no_samples_are_an_error(client: Any) -> None:
    with pytest.raises(qg.CalibrationError, match="holds no samples"):
        qg.profile(MNIST, [], client=client)


def test_a_graph_cannot_be_sent(client: Any) -> None:
    graph = qg.import_model(MNIST)
    with pytest.raises(qg.OptionError, match="pass its path or bytes"):
        qg.profile(graph, SAMPLES, client=client)


@pytest.mark.slow
def test_samples_that_kill_every_worker_are_named(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiling_on_workers, "LIVES", 1)
    monkeypatch.setattr(profiling_on_workers, "part_of_profile", abort)
    with pytest.raises(qg.BackendError, match="sample 0: the workers that profiled them died"):
        qg.profile(MNIST, SAMPLES[:1], client=client)


def abort(*operands: Any) -> None:
    """End the process."""
    os.abort()


def test_workers_of_two_kinds_are_refused(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling_on_workers, "part_of_profile", of_another_kind)
    with pytest.raises(qg.BackendError, match=r"the workers differ.*process: "):
        qg.profile(MNIST, SAMPLES, client=client)


def of_another_kind(model: bytes, asked: Any, samples: list[Located]) -> Any:
    """A part of a profile from a process that is like no other."""
    return {"process": samples[0].place}, qg.Profile("", {}, 1)


@pytest.mark.parametrize("client", [3, "tcp://localhost:8786"])
def test_other_clients_are_refused(client: Any) -> None:
    with pytest.raises(qg.OptionError, match=r"client must be a dask\.distributed\.Client"):
        qg.profile(MNIST, SAMPLES, client=client)


def test_without_dask_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(qg.OptionError, match=r"quantglow\[distributed\]"):
        qg.profile(MNIST, SAMPLES, client=object())


@pytest.mark.parametrize(("nbytes", "most"), [(4, TASK_SAMPLES), (TASK_NBYTES // 2, 2)])
def test_tasks_are_bounded(nbytes: int, most: int) -> None:
    batches = [Located({"x": np.zeros(nbytes, np.uint8)}, str(n)) for n in range(2 * most + 1)]
    assert [len(task) for task in split_tasks(batches)] == [most, most, 1]

"""Work on a Dask cluster waits for workers that can come, and only for these."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import distributed
import pytest

import quantglow as qg
from quantglow.api.pipeline.distributed_profiling import blas_of_numpy
from quantglow.support.extras import ABSENT_SECONDS, GONE_SECONDS, Attendance
from tests.unit.api.pipeline.test_distributed import MNIST, SAMPLES

pytestmark = pytest.mark.filterwarnings("default")  # Dask's own, of its sockets


@pytest.fixture
def nanny() -> Iterator[str]:
    """The address of something that listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"tcp://127.0.0.1:{server.getsockname()[1]}"


class FakeClient:
    """A client of a cluster whose workers, by address, are set by the test."""

    def __init__(self, nanny: str | None = None, adapts: bool = False) -> None:
        self.workers: dict[str, Any] = {}
        self.cluster = SimpleNamespace(_adaptive=object() if adapts else None)
        self.nanny, self.actions = nanny, list[str]()

    def start(self) -> None:
        self.workers = {"tcp://a:1": {"nanny": self.nanny}}
        self.actions.append("add-worker")

    def kill(self) -> None:
        self.workers = {}
        self.actions.append("remove-worker")

    def scheduler_info(self) -> dict[str, Any]:
        return {"workers": self.workers}

    def get_events(self, topic: str) -> list[tuple[float, dict[str, str]]]:
        assert topic == "all"
        return [(0.0, {"action": action}) for action in self.actions]


def absent(client: FakeClient, seconds: float, starts: bool = True) -> Attendance:
    """The attendance of a cluster whose workers were there, and are gone for some time."""
    attendance = Attendance(client)
    if starts:
        client.start()
        attendance.check()
        client.kill()
    attendance.last = time.monotonic() - seconds
    return attendance


NO_NANNY = "tcp://127.0.0.1:9"


@pytest.mark.parametrize("address", [None, NO_NANNY], ids=["no nanny", "its nanny is dead"])
def test_workers_that_nothing_starts_again_are_awaited_for_seconds(address: str | None) -> None:
    client = FakeClient(address)
    absent(client, GONE_SECONDS - 2).check()
    with pytest.raises(qg.BackendError, match="no workers any more"):
        absent(client, GONE_SECONDS + 1).check()


def test_workers_that_their_nanny_starts_again_are_awaited(nanny: str) -> None:
    absent(FakeClient(nanny), GONE_SECONDS + 1).check()
    with pytest.raises(qg.BackendError, match="no workers any more"):
        absent(FakeClient(nanny), ABSENT_SECONDS + 1).check()


def test_a_wait_that_begins_when_all_workers_are_dead_knows_their_nanny(nanny: str) -> None:
    client = FakeClient(nanny)
    absent(client, 0)
    later = Attendance(client)
    later.last -= GONE_SECONDS + 1
    later.check()


@pytest.mark.parametrize(
    ("adapts", "starts"), [(True, True), (False, False)], ids=["adaptive", "none came yet"]
)
def test_clusters_that_may_get_workers_are_awaited(adapts: bool, starts: bool) -> None:
    absent(FakeClient(adapts=adapts), GONE_SECONDS + 1, starts).check()


@pytest.mark.slow
def test_a_cluster_whose_workers_are_all_dead_says_so_in_seconds() -> None:
    with (
        distributed.LocalCluster(
            n_workers=1, processes=False, dashboard_address=None, silence_logs=50
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        cluster.scale(0)
        while client.nthreads():
            time.sleep(0.05)
        start = time.monotonic()
        with pytest.raises(qg.BackendError, match="no workers any more"):
            qg.profile(MNIST, SAMPLES[:2], client=client)
        assert time.monotonic() - start < ABSENT_SECONDS / 2


SITE = Path("/env/site-packages")
NUMPYS = [str(SITE / "numpy.libs/libscipy_openblas64_-32.so"), str(SITE / "numpy/.dylibs/o.dylib")]
SCIPYS = [str(SITE / "scipy.libs/libscipy_openblas-6c.so"), str(SITE / "scipy/.dylibs/o.dylib")]
SHARED = ["/env/lib/libopenblas.so.0", "/usr/lib/libblas.so.3", "/env/lib/libmkl_rt.so.2"]


def libraries(*paths: str) -> list[Any]:
    """Entries of threadpoolctl, one for OpenMP among them."""
    names = [("openmp", "/env/lib/libgomp.so.1"), *(("blas", path) for path in paths)]
    return [{"user_api": api, "filepath": path} for api, path in names]


@pytest.mark.parametrize("scipys", SCIPYS)
@pytest.mark.parametrize("numpys", [*NUMPYS, *SHARED])
def test_the_blas_of_numpy_is_that_of_its_wheel_or_of_no_wheel(numpys: str, scipys: str) -> None:
    for paths in ([numpys], [numpys, scipys], [scipys, numpys]):
        chosen = blas_of_numpy(libraries(*paths), SITE / "numpy")
        assert [library["filepath"] for library in chosen] == [numpys]

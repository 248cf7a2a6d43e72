"""Tuning on the machines of a Dask cluster: one lease a machine, and deaths cost one choice."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import distributed
import numpy as np
import onnx
import pytest

import quantglow as qg
from quantglow.cli import tune
from quantglow.cli.main import main
from quantglow.codegen.llvm.cache import ENVIRONMENT
from quantglow.codegen.llvm.isa.costs import KernelChoice
from quantglow.codegen.llvm.targets import resolve
from quantglow.support import extras as clusters
from quantglow.support.processes.interrupts import NEVER, Deadline
from quantglow.tuning import cluster
from quantglow.tuning import tuner as tuning
from quantglow.tuning.cluster import DIED, ClusterMeasurer, lock, open_cluster, pin, tune_on_cluster
from quantglow.tuning.core_fit import Shape, build_graph
from quantglow.tuning.measuring import Job
from quantglow.tuning.records import read_records, this_host
from quantglow.tuning.tuner import Say, Tuner, quiet
from tests.support.clusters import two_workers
from tests.support.small_network import small_model, small_samples
from tests.unit.tuning import workers_of_tests
from tests.unit.tuning.workers_of_tests import FOLDER

pytestmark = pytest.mark.filterwarnings("default")  # Dask's own, of its sockets

GRAPH = build_graph([Shape(6, 24, 40), Shape(5, 20, 48, 3)])
JOBS = [Job("task", KernelChoice("plain", (1, 1, 1), False, n), 0) for n in (8, 2, 4, 16, 32)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("workers")


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[distributed.Client]:
    """A client of a cluster of two processes of this machine."""
    with two_workers({FOLDER: str(folder)}) as client:
        yield client


@pytest.fixture(autouse=True)
def _caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv(ENVIRONMENT, str(tmp_path / "cache"))
    for file in folder.iterdir():
        file.unlink()


def workers_do(monkeypatch: pytest.MonkeyPatch, measured: str, machine: str = "") -> None:
    """Let workers call functions of ``workers_of_tests``."""
    monkeypatch.setattr(cluster, "measure", getattr(workers_of_tests, measured))
    if machine:
        monkeypatch.setattr(cluster, "machine", getattr(workers_of_tests, machine))


def tuner(deadline: Deadline = NEVER, say: Say = quiet) -> Tuner:
    return Tuner([GRAPH], resolve("native"), 1, deadline, say=say)


def outcomes(client: Any, deadline: Deadline = NEVER, host: str | None = None) -> list[Any]:
    with open_cluster(client, tuner()) as actual:
        name = this_host() if host is None else host
        return ClusterMeasurer(actual, name, 3, deadline).run(JOBS)


def test_workers_of_one_machine_measure_one_after_the_other(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers_do(monkeypatch, "alone")
    monkeypatch.setattr(cluster, "BATCH", 1)
    actual = outcomes(client)
    assert [m.job for m in actual] == JOBS
    assert all(m.seconds == (0.5,) * 3 for m in actual)


def test_machines_measure_side_by_side(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    workers_do(monkeypatch, "together", "machine_of_each")
    monkeypatch.setattr(cluster, "BATCH", 1)
    assert [m.job for m in outcomes(client)] == JOBS


def test_a_worker_that_dies_costs_only_its_choice(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers_do(monkeypatch, "deadly", "machine_of_each")
    monkeypatch.setattr(cluster, "BATCH", 2)
    actual = outcomes(client)
    assert [m.job for m in actual] == JOBS
    assert [m.failure for m in actual] == ["", DIED, "", "", ""]
    assert [len(m.seconds) for m in actual] == [3, 0, 3, 3, 3]


def test_a_worker_that_is_ended_costs_nothing(
    client: Any, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    workers_do(monkeypatch, "held", "machine_of_each")

    def end() -> None:
        while not (files := list(folder.iterdir())):
            time.sleep(0.01)
        os.kill(int(files[0].name), signal.SIGKILL)

    thread = threading.Thread(target=end)
    thread.start()
    actual = outcomes(client)
    thread.join()
    assert [m.job for m in actual] == JOBS and all(m.seconds for m in actual)


def test_records_name_the_kind_of_machine_that_measured(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each kind is searched apart; what is known of one is not measured again."""
    workers_do(monkeypatch, "quick", "kind_of_each")
    monkeypatch.setattr(tuning, "MOST_TRIED", 8)
    monkeypatch.setattr(tune, "COMPARED_SECONDS", 0.1)
    client.wait_for_workers(2)
    actual = tune_on_cluster(client, tuner(), [])
    kinds = {record.host for record in actual}
    assert len(kinds) == 2 and len(actual) == 4
    assert all(record.tried >= 8 for record in actual)
    ours = [record for record in actual if record.host == min(kinds)]
    assert {record.host for record in tune_on_cluster(client, tuner(), ours)} == {max(kinds)}


def test_nothing_is_begun_after_the_deadline(client: Any) -> None:
    assert outcomes(client, Deadline(0.0)) == []
    with pytest.raises(qg.BackendError, match="no time was left"):
        tune_on_cluster(client, tuner(Deadline(0.0)), [])


@pytest.mark.parametrize(
    ("machine", "reason"),
    [("another_version", r"it has quantglow 0\.0"), ("another_level", "its instructions are z80")],
)
def test_machines_that_do_not_fit_are_refused(
    client: Any, monkeypatch: pytest.MonkeyPatch, machine: str, reason: str
) -> None:
    workers_do(monkeypatch, "quick", machine)
    lines: list[str] = []
    with pytest.raises(qg.BackendError, match=f"no machine of the cluster measures: {reason}"):
        tune_on_cluster(client, tuner(say=lines.append), [])
    assert len(lines) == 2 and all("does not measure" in line for line in lines)


def test_an_error_of_a_worker_is_raised(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    workers_do(monkeypatch, "broken")
    with pytest.raises(ZeroDivisionError, match="not of ours"):
        tune_on_cluster(client, tuner(), [])


def test_a_cluster_that_lost_its_machines_is_an_error(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clusters, "ABSENT_SECONDS", 0.05)
    with pytest.raises(qg.BackendError, match="no workers any more"):
        outcomes(client, host="a kind that is gone")


@pytest.mark.slow
def test_a_network_tuned_on_a_cluster_gives_the_same_bits(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = qg.quantize(qg.import_model(small_model()), qg.profile(small_model(), small_samples()))
    plain = qg.compile(graph, num_threads=1)
    options: dict[str, Any] = {"tune": "measure", "max_minutes": 2, "client": client}
    monkeypatch.setattr(tuning, "MOST_TRIED", 8)
    tuned = qg.compile(graph, num_threads=1, **options)
    records = read_records()
    assert records and {record.host for record in records} == {this_host()}
    for sample in small_samples():
        for one, other in zip(plain(sample), tuned(sample), strict=True):
            assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


def test_the_command_line_tunes_on_a_cluster(
    client: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    workers_do(monkeypatch, "quick", "kind_of_each")
    monkeypatch.setattr(tuning, "MOST_TRIED", 8)
    monkeypatch.setattr(tune, "COMPARED_SECONDS", 0.1)
    client.wait_for_workers(2)
    onnx.save(small_model(), tmp_path / "net.onnx")
    line = ["tune", str(tmp_path / "net.onnx"), "--num-threads", "1", "--json"]
    assert main([*line, "--scheduler", client.scheduler.address]) == 0
    data = json.loads(capsys.readouterr().out)["records"]
    assert len({record["host"] for record in data}) == 2
    monkeypatch.setattr(tune, "CONNECT_SECONDS", 0.2)
    assert main([*line, "--scheduler", "tcp://127.0.0.1:9"]) == 1
    assert "scheduler: cannot reach" in capsys.readouterr().err


@pytest.mark.parametrize("options", [{"client": 3, "tune": "measure"}, {"client": 3}], ids=str)
def test_other_clients_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(qg.OptionError, match=r"client must be a dask\.distributed\.Client"):
        qg.compile(small_model(), **options)


def test_a_client_is_for_measuring(client: Any) -> None:
    with pytest.raises(qg.OptionError, match="client is for tune='measure'"):
        qg.compile(small_model(), client=client, tune="records")


# -- leases


def test_children_run_on_one_processor() -> None:
    before = os.sched_getaffinity(0)
    with pin():
        ours = os.sched_getaffinity(0)
        words = [sys.executable, "-c", "import os; print(*os.sched_getaffinity(0))"]
        shown = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert len(ours) == 1 and ours <= before and set(map(int, shown.split())) == ours
    assert os.sched_getaffinity(0) == before


def test_a_lease_is_a_lock(tmp_path: Path) -> None:
    path = tmp_path / "lease"

    def is_free() -> bool:
        with path.open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

    with lock(path):
        assert not is_free()
    assert is_free()


def test_a_lock_that_cannot_be_made_stops_nobody(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.touch()
    (tmp_path / "link").symlink_to(target)
    with lock(tmp_path / "link"), lock(tmp_path / "none" / "lease"):
        pass

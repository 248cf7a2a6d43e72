"""Stored programs that several processes and threads use at once, on disks that fail: outputs are
those of a compiled program, and nothing that was written in part is ever read."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import pytest

import quantglow as qg
from quantglow.memory import planning
from quantglow.runtime.native import program_store
from quantglow.runtime.native.program_store import ProgramStore
from quantglow.support import private_folder
from quantglow.support.private_folder import ABANDONED_SECONDS, PrivateFolder
from tests.support.free_network import SHAPES, free_model, image
from tests.support.stored_programs import forget, run_shapes, run_small
from tests.unit.forking import exit_code_of_child

PATIENCE_SECONDS = 60
PROCESSES = 3


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache; every constant has an entry of its own."""
    monkeypatch.setenv("QUANTGLOW_VERIFY", "0")
    monkeypatch.setenv("QUANTGLOW_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(program_store, "LARGE_NBYTES", 1)
    forget(monkeypatch)
    return tmp_path / "cache" / "programs"


@pytest.fixture(scope="module")
def expected() -> bytes:
    """Outputs of a process that keeps nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QUANTGLOW_CACHE_DIR", "")
        forget(patch)
        return run_small()


@pytest.fixture
def is_read(monkeypatch: pytest.MonkeyPatch) -> Callable[[], bool]:
    """Whether the model runs by its stored program: nothing may be planned."""

    def actual() -> bool:
        planned: list[object] = []
        with monkeypatch.context() as patch:
            forget(patch)
            plan = planning.plan_program
            patch.setattr(
                planning, "plan_program", lambda *a, **k: planned.append(a) or plan(*a, **k)
            )
            run_small()
        return not planned

    return actual


def half_written(folder: Path) -> list[str]:
    """Names of files that were not finished."""
    return [p.name for p in folder.glob(".*") if private_folder.TEMPORARY.fullmatch(p.name)]


class FullDisk:
    """A disk on which files whose names begin so have room for half of their bytes."""

    def __init__(self, patch: pytest.MonkeyPatch, prefix: str, error: int = errno.ENOSPC) -> None:
        self.prefix, self.error, self.refused = prefix, error, 0
        self.names: dict[int, str] = {}
        self._open = os.open
        patch.setattr(private_folder.os, "open", self.opened)
        patch.setattr(private_folder, "open", self.stream, raising=False)

    def opened(self, path: Any, *arguments: Any, **named: Any) -> int:
        file = self._open(path, *arguments, **named)
        self.names[file] = Path(str(path)).name
        return file

    def stream(self, file: int, mode: str) -> IO[bytes]:
        actual = open(file, mode, buffering=0)  # noqa: SIM115 - the caller closes it
        return Cut(actual, self) if self.names[file].startswith(f".{self.prefix}") else actual  # type: ignore[return-value]


class Cut:
    """A file that takes half of what is written."""

    def __init__(self, file: IO[bytes], disk: FullDisk) -> None:
        self.file, self.disk = file, disk

    def __enter__(self) -> Cut:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def write(self, content: bytes) -> None:
        self.file.write(content[: len(content) // 2])
        self.disk.refused += 1
        raise OSError(self.disk.error, os.strerror(self.disk.error))


@pytest.mark.parametrize("prefix", ["", "program_", "constant_"])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EIO], ids=errno.errorcode.get)
def test_a_full_disk_keeps_nothing_and_harms_nothing(
    folder: Path,
    expected: bytes,
    prefix: str,
    error: int,
    is_read: Callable[[], bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        disk = FullDisk(patch, prefix, error)
        assert run_small() == expected
        assert disk.refused
        forget(patch)
        assert run_small() == expected
    assert half_written(folder) == []
    assert not is_read()  # it is compiled, and written, now that there is room
    assert is_read()


@pytest.mark.parametrize("kind", ["program_*", "constant_*"])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_truncated_entries_are_written_again(
    folder: Path, expected: bytes, kind: str, share: float, is_read: Callable[[], bool]
) -> None:
    run_small()
    for entry in folder.glob(kind):
        os.truncate(entry, int(share * entry.stat().st_size))
    assert run_small() == expected
    assert is_read()


def test_a_folder_that_cannot_be_written_is_read(
    folder: Path,
    expected: bytes,
    is_read: Callable[[], bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_small()
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    read_only(monkeypatch)
    assert is_read()
    compiled = qg.compile(free_model(), num_threads=1)
    assert compiled.run(None, {"x": image(SHAPES[0])})
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def read_only(patch: pytest.MonkeyPatch) -> None:
    """Make the disk refuse new files; modes do not hold the administrator back."""
    real = os.open

    def opened(path: Any, flags: int, *arguments: Any, **named: Any) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return real(path, flags, *arguments, **named)

    patch.setattr(private_folder.os, "open", opened)


def test_an_empty_folder_that_cannot_be_written_is_no_error(
    folder: Path, expected: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.mkdir(parents=True, mode=0o700)
    read_only(monkeypatch)
    assert [run_small(), run_small()] == [expected, expected]
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("kind", ["program_", "constant_"])
def test_a_killed_process_leaves_no_entry(
    folder: Path,
    expected: bytes,
    kind: str,
    is_read: Callable[[], bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def dies() -> bool:
        def write(cut: Cut, content: bytes) -> None:
            cut.file.write(content[: len(content) // 2])
            os.kill(os.getpid(), signal.SIGKILL)

        monkeypatch.setattr(Cut, "write", write)
        FullDisk(monkeypatch, kind)
        return bool(run_small())

    assert exit_code_of_child(dies) == -signal.SIGKILL
    (left,) = half_written(folder)
    assert run_small() == expected
    assert is_read()
    os.utime(folder / left, (0, 0))
    ProgramStore().cache.prune()
    assert half_written(folder) == []


def test_files_that_are_being_written_are_not_swept(folder: Path) -> None:
    run_small()
    (folder / f".program_x.o.{'0' * 16}").write_bytes(b"half")
    ProgramStore().cache.prune()
    assert len(half_written(folder)) == 1
    assert ABANDONED_SECONDS > PATIENCE_SECONDS


def test_a_fork_while_a_program_is_stored_finds_no_lock(
    folder: Path, expected: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, go_on = threading.Event(), threading.Event()
    write, storing = PrivateFolder.write, threading.local()

    def waiting(folder: PrivateFolder, name: str, content: bytes) -> None:
        if name.startswith("program_") and getattr(storing, "waits", False):
            reached.set()
            assert go_on.wait(PATIENCE_SECONDS)
        write(folder, name, content)

    def stores() -> bytes:
        storing.waits = True
        return run_small()

    monkeypatch.setattr(PrivateFolder, "write", waiting)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(stores)
        try:
            assert reached.wait(PATIENCE_SECONDS)
            code = exit_code_of_child(lambda: run_small() == expected)
        finally:
            go_on.set()
        assert (code, other.result()) == (0, expected)
    assert half_written(folder) == []


def test_a_child_stores_what_its_parent_reads(
    folder: Path, expected: bytes, is_read: Callable[[], bool]
) -> None:
    assert exit_code_of_child(lambda: run_small() == expected) == 0
    assert is_read()


def test_threads_store_and_read_a_program_at_once(
    folder: Path, expected: bytes, is_read: Callable[[], bool]
) -> None:
    barrier = threading.Barrier(6)

    def works(_: int) -> list[bytes]:
        barrier.wait(PATIENCE_SECONDS)
        return [run_small() for _ in range(3)]

    with ThreadPoolExecutor(barrier.parties) as pool:
        for value in pool.map(works, range(barrier.parties)):
            assert value == [expected] * 3
    assert half_written(folder) == []
    assert is_read()


@pytest.mark.slow
def test_processes_store_and_read_programs_at_once(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = qg.compile(free_model(), num_threads=1)
    compiled.run(None, {"x": image(SHAPES[0])})
    compiled.save(tmp_path / "free.qgm")
    for entry in folder.iterdir():
        entry.unlink()
    code = f"""
import sys
from pathlib import Path
from tests.support.stored_programs import run_shapes
ready = sys.stdin.readline()  # all begin at once
print([run_shapes(Path({str(tmp_path / "free.qgm")!r})) for _ in range(2)])
"""
    command = [sys.executable, "-c", code]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    running = [subprocess.Popen(command, **pipes) for _ in range(PROCESSES)]  # type: ignore[call-overload]
    with ThreadPoolExecutor(PROCESSES) as pool:
        actual = list(pool.map(lambda c: c.communicate("\n", timeout=PATIENCE_SECONDS)[0], running))
    assert actual == [f"{[run_shapes(tmp_path / 'free.qgm')] * 2}\n"] * PROCESSES
    assert half_written(folder) == []

"""The object cache saves compilation, and damage to its files does no harm."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from quantglow.codegen.llvm.cache import (
    ENVIRONMENT,
    MAGIC,
    PRUNE_EVERY_NBYTES,
    TOUCH_AFTER_SECONDS,
    ObjectCache,
    seal,
    unseal,
    user_cache,
)
from quantglow.codegen.llvm.targets import resolve
from quantglow.runtime.jit.library import KernelLibrary
from tests.unit.forking import exit_code_of_child

TEXT = """
define void @kernel(ptr %args, i64 %begin, i64 %end) nounwind {
  %sum = mul i64 %begin, %end
  store i64 %sum, ptr %args
  ret void
}
"""
ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
PRODUCT = f"""
import ctypes, numpy as np
from pathlib import Path
from quantglow.codegen.llvm.cache import ObjectCache
from quantglow.runtime.jit.library import KernelLibrary
from quantglow.codegen.llvm.targets import resolve

class Counting(KernelLibrary):
    compiled = 0
    def compile(self, text):
        Counting.compiled += 1
        return super().compile(text)

library = Counting(resolve("native"))
texts = [{TEXT!r}.replace("mul", op) for op in ("mul", "add", "sub", "or", "and", "xor")]
results = []
for address in library.load(texts):
    out = np.zeros(1, np.int64)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(address)(
        out.ctypes.data, 6, 7)
    results.append(int(out[0]))
print(Counting.compiled, results)
"""
RESULTS = [6 * 7, 6 + 7, 6 - 7, 6 | 7, 6 & 7, 6 ^ 7]


def product(kernels: KernelLibrary) -> int:
    """Result of the kernel ``TEXT`` for 6 and 7."""
    (address,) = kernels.load([TEXT])
    out = np.zeros(1, np.int64)
    ENTRY(address)(out.ctypes.data, 6, 7)
    return int(out[0])


def started(root: Path | str, **switches: str) -> subprocess.Popen[str]:
    environment = {**os.environ, ENVIRONMENT: str(root), **switches}
    return subprocess.Popen(
        [sys.executable, "-c", PRODUCT], env=environment, stdout=subprocess.PIPE, text=True
    )


def answer(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    return output.strip()


def library(cache: ObjectCache) -> KernelLibrary:
    return KernelLibrary(resolve("native"), cache)


def entry_path(folder: Path) -> Path:
    (path,) = folder.glob("*.o")
    return path


def test_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    answers = [answer(started(tmp_path)) for _ in range(2)]
    assert answers == [f"6 {RESULTS}", f"0 {RESULTS}"]


def test_a_process_that_shows_kernels_compiles_all_of_them(tmp_path: Path) -> None:
    assert answer(started(tmp_path)) == f"6 {RESULTS}"
    assert answer(started(tmp_path, QUANTGLOW_DEBUG="3")) == f"6 {RESULTS}"


def test_concurrent_processes_agree_and_leave_intact_entries(tmp_path: Path) -> None:
    processes = [started(tmp_path) for _ in range(4)]
    assert all(answer(process).endswith(str(RESULTS)) for process in processes)
    entries = list((tmp_path / "kernels").glob("*.o"))
    assert len(entries) == 6
    assert all(unseal(path.stem, path.read_bytes()) for path in entries)
    assert answer(started(tmp_path)) == f"0 {RESULTS}"


def test_the_empty_variable_disables_the_cache(tmp_path: Path) -> None:
    answers = [answer(started("")) for _ in range(2)]
    assert answers == [f"6 {RESULTS}"] * 2


@pytest.mark.parametrize("position", [0, len(MAGIC), len(MAGIC) + 40, -1])
def test_an_entry_with_a_flipped_bit_is_rebuilt(tmp_path: Path, position: int) -> None:
    library(ObjectCache(tmp_path)).load([TEXT])
    path = entry_path(tmp_path)
    intact = path.read_bytes()
    damaged = bytearray(intact)
    damaged[position] ^= 1
    path.write_bytes(damaged)
    assert product(library(ObjectCache(tmp_path))) == 42
    assert path.read_bytes() == intact


@pytest.mark.parametrize("length", [0, 5, len(MAGIC) + 32, -1])
def test_a_truncated_entry_is_rebuilt(tmp_path: Path, length: int) -> None:
    library(ObjectCache(tmp_path)).load([TEXT])
    path = entry_path(tmp_path)
    intact = path.read_bytes()
    path.write_bytes(intact[:length])
    assert product(library(ObjectCache(tmp_path))) == 42
    assert path.read_bytes() == intact


def test_an_entry_under_another_name_is_refused() -> None:
    assert unseal("b", seal("a", b"code")) is None


def test_the_symbol_depends_on_text_entry_and_target() -> None:
    native = library(ObjectCache(None))
    baseline = KernelLibrary(resolve("x86-64"), ObjectCache(None))
    symbols = {
        native.symbol(TEXT, "kernel"),
        native.symbol(TEXT + "\n", "kernel"),
        native.symbol(TEXT, "other"),
        baseline.symbol(TEXT, "kernel"),
    }
    assert len(symbols) == 4


@pytest.mark.parametrize("obstacle", ["file", "folder"])
def test_an_unusable_cache_is_no_error(tmp_path: Path, obstacle: str) -> None:
    folder = tmp_path / "kernels"
    if obstacle == "file":
        folder.write_text("in the way")
    else:
        symbol = library(ObjectCache(None)).symbol(TEXT, "kernel")
        (folder / f"{symbol}.o").mkdir(parents=True)
    assert product(library(ObjectCache(folder))) == 42


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    ObjectCache(tmp_path).put("a", b"code")
    assert list(tmp_path.iterdir()) == []


def test_pruning_removes_what_was_used_longest_ago(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path, most_nbytes=5000)
    for index in range(8):
        cache.put(f"k{index}", bytes(900))
        os.utime(tmp_path / f"k{index}.o", (index, index))
    assert cache.get("k0") is not None  # now it is the one used last
    cache.prune()
    assert sorted(path.stem for path in tmp_path.glob("*.o")) == ["k0", "k6", "k7"]


def test_much_writing_prunes_by_itself(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path, most_nbytes=PRUNE_EVERY_NBYTES // 2)
    for index in range(3):
        cache.put(f"k{index}", bytes(PRUNE_EVERY_NBYTES // 2))
    assert sum(path.stat().st_size for path in tmp_path.glob("*.o")) <= PRUNE_EVERY_NBYTES


def test_a_day_after_the_last_look_one_process_looks_again(tmp_path: Path) -> None:
    ObjectCache(tmp_path).put("old", bytes(100))
    os.utime(tmp_path / "old.o", (1, 1))
    os.utime(tmp_path / ".looked", (1, 1))
    ObjectCache(tmp_path, most_nbytes=350).put("new", bytes(200))
    assert [path.stem for path in tmp_path.glob("*.o")] == ["new"]


def test_recently_dated_entries_keep_their_date(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path)
    cache.put("a", b"code")
    date = (tmp_path / "a.o").stat().st_mtime - TOUCH_AFTER_SECONDS / 2
    os.utime(tmp_path / "a.o", (date, date))
    cache.get("a")
    assert (tmp_path / "a.o").stat().st_mtime == pytest.approx(date)


def test_threads_may_share_a_cache(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path)
    threads = [
        threading.Thread(target=cache.put, args=(f"k{i % 3}", bytes(1000))) for i in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [cache.get(f"k{i}") for i in range(3)] == [bytes(1000)] * 3


def test_the_environment_chooses_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENVIRONMENT, str(tmp_path))
    assert user_cache().folder == tmp_path / "kernels"
    monkeypatch.delenv(ENVIRONMENT)
    monkeypatch.setenv("HOME", "/somewhere")
    assert user_cache().folder == Path("/somewhere/.cache/quantglow/kernels")
    monkeypatch.setenv(ENVIRONMENT, "")
    assert user_cache().folder is None


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_forked_while_a_thread_compiles_compiles_too() -> None:
    begun = threading.Event()

    class Slow(KernelLibrary):
        def compile(self, text: str) -> bytes:
            begun.set()
            time.sleep(0.3)
            return super().compile(text)

    kernels = Slow(resolve("native"), ObjectCache(None))
    thread = threading.Thread(target=product, args=(kernels,))
    thread.start()
    begun.wait()
    assert exit_code_of_child(lambda: product(kernels) == 42) == 0
    thread.join()


def entries_of(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.suffix == ".o")


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702, 0o1777])
def test_a_folder_that_others_may_write_to_is_not_used(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "kernels"
    ObjectCache(folder).put("a", b"code")
    folder.chmod(mode)
    ObjectCache(folder).put("b", b"more")
    assert ObjectCache(folder).get("a") is None
    assert entries_of(folder) == ["a.o"]


@pytest.mark.parametrize("mode", [0o666, 0o620])
def test_an_entry_that_others_may_write_to_is_not_used(tmp_path: Path, mode: int) -> None:
    ObjectCache(tmp_path).put("a", b"code")
    (tmp_path / "a.o").chmod(mode)
    assert ObjectCache(tmp_path).get("a") is None
    ObjectCache(tmp_path).put("a", b"code")
    assert ObjectCache(tmp_path).get("a") == b"code"


def test_a_link_in_the_place_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    shared, mine = tmp_path / "shared", tmp_path / "mine"
    ObjectCache(mine).put("a", b"code")
    shared.mkdir()
    shared.chmod(0o1777)
    (shared / "kernels").symlink_to(mine)
    ObjectCache(shared / "kernels").put("b", b"more")
    assert ObjectCache(shared / "kernels").get("a") is None
    assert entries_of(mine) == ["a.o"]


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_an_entry_that_is_no_file_is_not_used(tmp_path: Path, kind: str) -> None:
    folder, entry = tmp_path / "kernels", tmp_path / "kernels" / "a.o"
    folder.mkdir(mode=0o700)
    if kind == "link":
        ObjectCache(tmp_path / "other").put("a", b"code")
        entry.symlink_to(tmp_path / "other" / "a.o")
    elif kind == "pipe":
        os.mkfifo(entry)
    else:
        entry.mkdir()
    assert ObjectCache(folder).get("a") is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only the administrator gives files away")
@pytest.mark.parametrize("inputs", [".", "a.o"])
def test_files_of_another_user_are_not_used(tmp_path: Path, inputs: str) -> None:
    folder = tmp_path / "kernels"
    ObjectCache(folder).put("a", b"code")
    os.chown(folder / inputs, 12345, 12345)
    assert ObjectCache(folder).get("a") is None


def test_a_user_does_not_use_what_another_one_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ObjectCache(tmp_path).put("a", b"code")
    owner = tmp_path.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    actual = ObjectCache(tmp_path).get("a")
    assert actual == (b"code" if owner == 0 else None)  # the administrator's files are trusted


def test_a_path_that_is_too_long_is_no_error() -> None:
    cache = ObjectCache(Path("/tmp") / ("long/" * 2000))
    cache.put("a", b"code")
    assert cache.get("a") is None


def test_pruning_sweeps_what_killed_processes_left(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path)
    cache.put("a", b"code")
    for age, digits in ((0, "0"), (2 * 3600, "1")):
        left = tmp_path / f".b.o.{digits * 16}"
        left.write_bytes(b"half")
        date = left.stat().st_mtime - age
        os.utime(left, (date, date))
    cache.prune()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f".b.o.{'0' * 16}",
        ".looked",
        "a.o",
    ]


def test_pruning_steps_over_folders(tmp_path: Path) -> None:
    (tmp_path / "a.o").mkdir()
    cache = ObjectCache(tmp_path, most_nbytes=1500)
    for index in range(2):
        cache.put(f"k{index}", bytes(900))
        os.utime(tmp_path / f"k{index}.o", (9e8 + index,) * 2)
    cache.prune()
    assert sorted(path.name for path in tmp_path.glob("*.o")) == ["a.o", "k1.o"]

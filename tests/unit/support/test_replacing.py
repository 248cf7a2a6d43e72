"""Files are replaced whole or not at all, and are no more open to others than before."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from quantglow.support.files import replacing


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_a_new_file_has_the_permissions_of_new_files(tmp_path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        with replacing(tmp_path / "new") as temporary:
            temporary.write_bytes(b"text")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == mode


def test_a_replaced_file_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b"old")
    path.chmod(0o600)
    with replacing(path) as temporary:
        temporary.write_bytes(b"new")
    assert (stat.S_IMODE(path.stat().st_mode), path.read_bytes()) == (0o600, b"new")


def test_a_failing_block_leaves_the_old_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    path.write_bytes(b"old")
    with pytest.raises(IsADirectoryError), replacing(path) as temporary:
        (temporary.write_bytes(b"half"), tmp_path.read_bytes())
    assert (os.listdir(tmp_path), path.read_bytes()) == (["kept"], b"old")


def test_a_link_stays_and_the_file_that_it_names_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with replacing(tmp_path / "link") as temporary:
        temporary.write_bytes(b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_bytes() == b"new"


def test_pipes_and_devices_are_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="device or a pipe"), replacing(tmp_path / "pipe"):
        pass
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert os.listdir(tmp_path) == ["pipe"]

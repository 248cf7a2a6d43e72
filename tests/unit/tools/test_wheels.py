"""Downloads that fail: what is the network's fault, and what is not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tools.downloads.wheels import extract


def failing(message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pip write this and fail."""
    run = subprocess.run
    script = f"import sys; sys.exit({message!r})"

    def instead(command: list[str], **options: Any) -> Any:
        return run([sys.executable, "-c", script], **options)

    monkeypatch.setattr(subprocess, "run", instead)


def test_an_index_that_is_not_reached_is_a_connection_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing("Retrying after connection broken by 'NewConnectionError'", monkeypatch)
    with pytest.raises(ConnectionError, match="some==1 cannot be downloaded"):
        extract("some==1", "model.onnx", tmp_path / "model.onnx")


def test_a_package_that_does_not_exist_is_another_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing("No matching distribution found for some==1", monkeypatch)
    with pytest.raises(subprocess.CalledProcessError):
        extract("some==1", "model.onnx", tmp_path / "model.onnx")


@pytest.mark.slow
def test_pip_says_what_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    with pytest.raises(ConnectionError):
        extract("some==1", "model.onnx", tmp_path / "model.onnx")

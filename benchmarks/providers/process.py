"""One model in one provider of onnxruntime, or compiled by quantglow, driven over pipes.

Nothing but the runtime and NumPy is imported, so that memory is the runtime's; OpenVINO's provider
may live in an environment of its own.  Actions are those of ``benchmarks.latency.worker``;
``prepare`` says more:

seconds   of making the session or the compiled model, imports and registration not counted
first     seconds of the first call
before    resident bytes before that, libraries included
resident  resident bytes after the first call
peak      of resident bytes
claim     what became of the graph, where it is quantglow's provider
python    share of the calls that quantglow's provider answered in Python
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.support.process_memory import status_nbytes
from benchmarks.support.serving import serve

Feeds = dict[str, Any]
Call = Callable[[Feeds], list[Any]]
Open = Callable[[], Call]
PROVIDER, CPU = "QuantglowExecutionProvider", "CPUExecutionProvider"
OPENVINO = "OpenVINOExecutionProvider"


def session_options(threads: int, *, exact_sums: bool = False) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 4
    if exact_sums:
        options.add_session_config_entry("session.x64quantprecision", "1")
    return options


def opener(model: str, options: Any, providers: list[Any] | None, name: str) -> Open:
    """A function that makes a session.  Raises ``RuntimeError`` where it has not this provider."""
    import onnxruntime

    def make() -> Call:
        session = onnxruntime.InferenceSession(model, options, providers)
        session.disable_fallback()
        if session.get_providers()[0] != name:
            raise RuntimeError(f"the session has {session.get_providers()} and no {name}")
        return lambda feeds: list(session.run(None, feeds))

    return make


def on_cpu(model: str, threads: int, library: str) -> Open:
    return opener(model, session_options(threads), [CPU], CPU)


def on_cpu_exact(model: str, threads: int, library: str) -> Open:
    """Sums of int8 products that do not saturate on x86 without VNNI, either."""
    return opener(model, session_options(threads, exact_sums=True), [CPU], CPU)


def on_quantglow(model: str, threads: int, library: str) -> Open:
    register(library)
    providers = [(PROVIDER, {"num_threads": str(threads)}), CPU]
    return opener(model, session_options(threads), providers, PROVIDER)


def register(library: str) -> None:
    """Register quantglow's provider of this file."""
    import onnxruntime

    from quantglow import ep

    ep.install(library)
    onnxruntime.register_execution_provider_library(PROVIDER, library)


def on_openvino(model: str, threads: int, library: str) -> Open:
    """OpenVINO's provider: its plug-in, or the one of the package onnxruntime-openvino."""
    import onnxruntime

    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
        "NUM_STREAMS": "1",
        "INFERENCE_NUM_THREADS": threads,
    }
    chosen = {"load_config": json.dumps({"CPU": settings})}
    options = session_options(threads)
    if OPENVINO in onnxruntime.get_available_providers():
        providers = [(OPENVINO, {"device_type": "CPU", **chosen}), CPU]
        return opener(model, options, providers, OPENVINO)
    plug_in: Any = import_module("onnxruntime_ep_openvino")
    library = plug_in.get_library_path()
    onnxruntime.register_execution_provider_library(OPENVINO, library)
    devices = [
        device
        for device in onnxruntime.get_ep_devices()
        if device.ep_name == OPENVINO and device.ep_metadata.get("ov_device") == "CPU"
    ]
    if not devices:
        raise RuntimeError(
            "onnxruntime-ep-openvino has no device for this processor. Remedy: --openvino-python "
            "with an environment that has onnxruntime-openvino"
        )
    options.add_provider_for_devices(devices, chosen)
    return opener(model, options, None, OPENVINO)


def compiled(model: str, threads: int, library: str) -> Open:
    """The model as ``qg.compile`` gives it, where onnxruntime is imported, too."""
    import onnxruntime  # noqa: F401

    import quantglow as qg
    from quantglow import ep  # noqa: F401

    def make() -> Call:
        built = qg.compile(model, num_threads=threads)
        return lambda feeds: list(built.run(None, feeds))

    return make


CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}

RUNTIMES: dict[str, Callable[[str, int, str], Open]] = {
    "cpu": on_cpu,
    "cpu exact": on_cpu_exact,
    "quantglow": on_quantglow,
    "openvino": on_openvino,
    "compile": compiled,
}


def written(call: Call, feeds: Feeds, tokens: int) -> list[Any]:
    """The outputs of a decoder behind a prompt and so many tokens, each the likeliest one."""
    caches = [name for name in feeds if name.startswith("past_key_values.")]
    for _ in range(tokens):
        logits, *rows = call(feeds)
        past = feeds["attention_mask"].shape[1]
        feeds = {**feeds, **dict(zip(caches, rows, strict=True))}
        feeds["input_ids"] = logits[:, -1:].argmax(-1)
        feeds["attention_mask"] = np.ones((1, past + 1), np.int64)
        if "position_ids" in feeds:
            feeds["position_ids"] = np.array([[past]])
    return call(feeds)


class Server:
    """The state of the process; ``prepare`` comes first."""

    call: Call
    feeds: Feeds
    tokens: int
    runtime: str
    clock: Callable[[], float]

    def prepare(
        self,
        runtime: str,
        model: str,
        threads: int,
        feeds: str,
        tokens: int,
        library: str,
        clock: str,
    ) -> dict[str, Any]:
        """Open the model and run it once."""
        with np.load(feeds, allow_pickle=False) as archive:
            self.feeds = dict(archive)
        self.tokens, self.runtime, self.clock = tokens, runtime, CLOCKS[clock]
        make = RUNTIMES[runtime](model, threads, library)
        before = status_nbytes("VmRSS")
        start = time.perf_counter()
        self.call = make()
        middle = time.perf_counter()
        outputs = self.once()
        seconds = {"seconds": middle - start, "first": time.perf_counter() - middle}
        np.savez(Path(feeds).with_name(f"{runtime}.npz"), *outputs)
        memory = {"resident": status_nbytes("VmRSS"), "peak": status_nbytes("VmHWM")}
        return {**seconds, "compile": 0.0, "before": before, **memory, **self.claim()}

    def once(self) -> list[Any]:
        """All outputs."""
        if self.tokens:
            return written(self.call, self.feeds, self.tokens)
        return self.call(self.feeds)

    def claim(self) -> dict[str, Any]:
        """The report of quantglow's provider."""
        if self.runtime != "quantglow":
            return {"claim": "", "python": 0.0}
        from quantglow import ep

        counts = ep.counts()
        calls = counts["native"] + counts["python"]
        share = counts["python"] / calls if calls else 0.0
        return {"claim": str(ep.claims()[-1]), "python": share}

    def time(self, warmup: int, runs: int) -> dict[str, Any]:
        """Seconds of each run."""
        for _ in range(warmup):
            self.once()
        seconds = []
        for _ in range(runs):
            start = self.clock()
            self.once()
            seconds.append(self.clock() - start)
        return {"seconds": seconds}


if __name__ == "__main__":
    server = Server()
    serve({"prepare": server.prepare, "time": server.time})

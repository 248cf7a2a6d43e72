"""Calls as a user writes them, for mypy alone, which pyproject.toml has check this file.

Keywords of public functions are inferred from the classes of their options.  Where type checkers no
longer see that a call is wrong, its ``type: ignore`` is unused, which is an error.
"""

from __future__ import annotations

from typing import Any

import quantglow as qg


def right(model: Any, samples: Any) -> None:
    qg.quantize_and_compile(model, samples)
    qg.quantize_and_compile(model=model, calibration_data=samples, preset="mixed", seed=3)
    qg.quantize_and_compile(model, None, weights="int4", recovery=["round-weights"])
    qg.compile(model, "native", 2, schedule="memory", tune="measure")
    qg.load("model.qgm", "native", num_threads=2, code="use")
    compiled = qg.load(path="model.qgm", tune="records")
    compiled.run(None, samples)
    graph = qg.import_model(model, {"x": (1, 3)}, input_values={"n": 3})
    qg.profile(graph, samples, subset_size=7, progress=False, profile_with="interpreter")
    qg.diagnose(graph, samples, qg.QuantizationConfig(), worst=3, measure_speed=True)
    qg.compare(model, samples, seconds=0.5, effort="fast", num_threads=1)
    qg.bisect(model, samples, target="portable", tolerance=1e-4)


def figures(model: Any, samples: Any) -> list[str]:
    """Names of what reports have."""
    report = qg.quantize_and_compile(model, samples).report
    seconds: float = report.seconds["quantize"] + qg.compile(model).report.seconds["import"]
    layers = [*report.layers, *qg.diagnose(model, samples).layers]
    outputs = [output.name for output in (*report.outputs, *qg.load("m.qgm").report.outputs)]
    return [f"{seconds:g}", report.headline, *(layer.name for layer in layers), *outputs]


def wrong(model: Any, samples: Any) -> None:
    qg.quantize_and_compile(model)  # type: ignore[call-arg]
    qg.quantize_and_compile(model, samples, "mixed")  # type: ignore[call-arg]
    qg.quantize_and_compile(model, samples, presett="mixed")  # type: ignore[call-arg]
    qg.quantize_and_compile(model, samples, preset="mix")  # type: ignore[arg-type]
    qg.quantize_and_compile(model, samples, seed="3")  # type: ignore[arg-type]
    qg.compile(model, 2)  # type: ignore[arg-type]
    qg.compile(model, target="native", code="use")  # type: ignore[call-arg]
    qg.load("model.qgm", tune="measure")  # type: ignore[arg-type]
    qg.QuantizationConfig(seed="3")  # type: ignore[arg-type]
    qg.import_model(model, (1, 3))  # type: ignore[arg-type]
    qg.profile(model, samples, 7)  # type: ignore[call-arg, arg-type]
    qg.diagnose(model, samples, sample=2)  # type: ignore[call-arg]
    qg.compare(model, samples, verify=True)  # type: ignore[arg-type]
    qg.compare(model, samples, presets="mixed")  # type: ignore[call-arg]
    qg.bisect(model)  # type: ignore[call-arg]
    _ = qg.compile(model).report.layer  # type: ignore[attr-defined]

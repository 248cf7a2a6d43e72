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

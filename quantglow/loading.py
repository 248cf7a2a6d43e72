"""Saved models made ready to run.

A process that loads and runs a model imports this and what it needs, not the whole compiler:
neither onnx nor onnxruntime, SciPy or rich, and LLVM only where a kernel is not in the cache.
"""

from __future__ import annotations

import os
from dataclasses import replace

from quantglow.report.report import Report, report_of
from quantglow.runtime import saving
from quantglow.runtime.build import compile_graph
from quantglow.runtime.compiled import CompiledModel


def load(
    path: str | os.PathLike[str],
    target: str = "native",
    num_threads: int | None = None,
    *,
    backend: str = "llvm",
) -> CompiledModel:
    """A model that ``CompiledModel.save`` wrote, compiled for this processor.

    Raises ``FileFormatError`` if the file is truncated or altered.
    """
    saved = saving.load(path)
    report = Report.from_json(saved.report)
    build = compile_graph(saved.graph, target, num_threads, backend)
    now = report_of(build, {})
    report = replace(
        report,
        target=now.target,
        num_threads=now.num_threads,
        memory=now.memory,
        seconds=now.seconds,
    )
    return CompiledModel.of(saved.graph, build, report)

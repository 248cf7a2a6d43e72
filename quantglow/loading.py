"""Saved models made ready to run.

A process that loads and runs a model imports this and what it needs, not the whole compiler:
neither onnx nor onnxruntime, SciPy or rich, and LLVM only where a kernel is not in the cache.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from quantglow.graph.graph import Graph
from quantglow.ops.external import External
from quantglow.report.report import Report, report_of
from quantglow.runtime import saving
from quantglow.runtime.build import compile_graph
from quantglow.runtime.compiled import CompiledModel
from quantglow.runtime.protocol import Backend


def load(
    path: str | os.PathLike[str],
    target: str = "native",
    num_threads: int | None = None,
    *,
    backend: str = "llvm",
    backends: Sequence[Backend] = (),
) -> CompiledModel:
    """A model that ``CompiledModel.save`` wrote, compiled for this processor.

    ``backend`` and ``backends`` are those of ``compile``.  Raises ``FileFormatError`` if the file
    is truncated or altered.
    """
    saved = saving.load(path)
    check_externals(saved.graph)
    report = Report.from_json(saved.report)
    build = compile_graph(saved.graph, target, num_threads, backend, backends)
    now = report_of(build, {})
    report = replace(
        report,
        target=now.target,
        num_threads=now.num_threads,
        memory=now.memory,
        seconds=now.seconds,
        delegated=now.delegated,
    )
    return CompiledModel.of(saved.graph, build, report)


def check_externals(graph: Graph) -> None:
    """Check the ONNX nodes inside a graph from a file.  Raises ``FileFormatError``."""
    if found := [node for node in graph.nodes if isinstance(node, External)]:
        # Only here: a process without delegated nodes needs no onnx.
        from quantglow.frontend.external import check_external

        for node in found:
            check_external(node)

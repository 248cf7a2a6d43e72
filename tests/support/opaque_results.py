"""Models whose late results are opaque, as if no graph with late sizes held their values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from quantglow.importer.onnx import Source
from quantglow.ir.graph.family import FreeCase, LateResults
from quantglow.ir.graph.graph import Graph
from quantglow.support.errors import UnsupportedOpError


@contextmanager
def opaque_results() -> Iterator[None]:
    """Inside, no model has a graph in which sizes of results are symbols."""
    usual = Source.at

    def at(
        source: Source, case: FreeCase, late_results: LateResults = LateResults.REFUSED
    ) -> Graph:
        if late_results is LateResults.SYMBOLIC:
            raise UnsupportedOpError(["no graph with late sizes holds its values"])
        return usual(source, case, late_results)

    with patch.object(Source, "at", at):
        yield

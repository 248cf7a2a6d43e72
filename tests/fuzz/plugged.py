"""Drawn cases in sessions of onnxruntime with the plug-in: what the CPU's provider computes.

Whatever is compiled is claimed, worth it or not, with one, two and three threads in turn.  Half of
the cases have free dimensions; some others are stored and loaded as EPContext models, whose results
are the same bits.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import onnx
import onnxruntime as ort

from quantglow.ep import claiming
from quantglow.ort.session import failures
from tests.fuzz.compare import (
    REFUSED,
    Arrays,
    Difference,
    Setting,
    differing,
    for_onnxruntime,
    onnxruntime_outputs,
    raised,
    reference,
)
from tests.fuzz.integers import first_difference
from tests.fuzz.unspecified import OPEN, ROUNDED, unspecified_outputs
from tests.generators.onnx_models.models import Case, Feeds
from tests.support import plug_in
from tests.support.free_dimensions import freed

STORED = "stored"
FORMS = ("fixed", "free", "free", STORED)


def check(case: Case, setting: Setting, seed: int) -> Difference | None:
    """The first difference of a case in the plug-in, or None."""
    try:
        plain, spans = reference(case.model, case.samples)
    except failures() as error:
        return Difference(REFUSED, str(error)[:300])
    feeds, form = case.samples[0], FORMS[seed % len(FORMS)]
    open_ends = [
        name
        for results in (OPEN, ROUNDED)
        for name in unspecified_outputs(case.model, feeds, onnxruntime_outputs, results)
    ]
    if open_ends:
        return None  # results that ONNX leaves open differ between runtimes
    model = freed(case.model, bool(seed % 8 // 4)) if form == "free" else case.model
    data = for_onnxruntime(model).SerializeToString()
    names = [output.name for output in model.graph.output]
    try:
        with patch.object(claiming, "_is_worth_it", lambda nodes: True):
            results = opened(data, setting.threads).run(None, feeds)
            if differences := differing(f"{form} plug-in", plain, spans, results):
                return next(iter(differences.values()))
            is_stored = form == STORED and not any(map(has_body, case.model.graph.node))
            return stored_difference(data, names, feeds, results) if is_stored else None
    except Exception as error:  # noqa: BLE001 - whatever is raised on a valid model is the finding
        return raised(error)


def has_body(node: onnx.NodeProto) -> bool:
    """Whether a node has bodies: onnxruntime stores no constants that only these read."""
    return any(each.HasField("g") for each in node.attribute)


def opened(model: str | bytes, threads: int = 1, stored: Path | None = None) -> Any:
    """A session with the plug-in, which may store its code; without onnxruntime's optimizer."""
    plug_in.register()
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    entries = {"enable": "1", "file_path": str(stored), "embed_mode": "1"} if stored else {}
    for name, value in entries.items():
        options.add_session_config_entry(f"ep.context_{name}", value)
    named = (plug_in.PROVIDER, {"num_threads": str(threads)})
    session = ort.InferenceSession(model, options, [named, plug_in.CPU])
    session.disable_fallback()
    return session


def stored_difference(
    data: bytes, names: list[str], feeds: Feeds, expected: Arrays
) -> Difference | None:
    """The difference of a stored model's results; None where it cannot be stored, with a remedy."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stored.onnx"
        try:
            opened(data, stored=path)
        except failures() as error:
            return None if "Remedy: " in str(error) else raised(error)
        if not path.exists():
            return None  # nothing of it is claimed
        results = opened(str(path)).run(None, feeds)
    detail = first_difference(names, expected, results)
    return Difference(STORED, detail) if detail else None

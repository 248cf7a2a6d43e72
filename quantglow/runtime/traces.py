"""Files of timelines: what a run, or a quantization, does when and on which thread."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from quantglow.arguments import file_path
from quantglow.files import check_writable, writing
from quantglow.timeline import recording


def traced_run(model: Any, feeds: Mapping[str, Any], path: str | os.PathLike[str]) -> list[Any]:
    """All outputs of a run that is traced; one run before it compiles and loads what is missing."""
    path = file_path("path", path)
    check_writable(path)
    model.run(None, feeds)
    with tracing(path):
        return list(model.run(None, feeds))


@contextmanager
def tracing(path: str | os.PathLike[str]) -> Iterator[None]:
    """Record what the block does; the file is written when it ends, also by an error.

    Kernels appear by the thread that ran them, with the gaps between them, calls of onnxruntime and
    the stages of ``quantize_and_compile`` as wholes.  The format is Chrome's, which
    https://ui.perfetto.dev and ``chrome://tracing`` show.  Runs in other threads are recorded if
    they have a copy of the caller's context.

    Raises ``OptionError`` for what is no path, and ``FileFormatError`` where the file
    cannot be written.
    """
    path = file_path("path", path)
    check_writable(path)
    with recording() as trace:
        try:
            yield
        finally:
            with writing(path) as temporary:
                temporary.write_text(json.dumps(trace.to_json()), encoding="utf-8")

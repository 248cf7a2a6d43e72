"""The plug-in execution provider, built from its sources and registered in this process."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import onnxruntime

PACKAGE = Path(__file__).parents[2] / "packages" / "onnxruntime-ep-quantglow"
FLAGS = ("-shared", "-fPIC", "-std=c11", "-D_GNU_SOURCE", "-O2", "-fvisibility=hidden")
STRICT = ("-Wall", "-Wextra", "-Werror")
PROVIDER, CPU = "QuantglowExecutionProvider", "CPUExecutionProvider"


def build(folder: Path, *more: str) -> Path:
    """The library, compiled with more options of the C compiler."""
    library = folder / "libquantglow_ep.so"
    sources = sorted(map(str, (PACKAGE / "src").glob("*.c")))
    headers = f"-I{PACKAGE / 'vendor' / 'onnxruntime'}"
    command = ["cc", *FLAGS, *STRICT, *more, headers, *sources, "-o", str(library), "-ldl"]
    subprocess.run(command, check=True)
    return library


def package() -> ModuleType:
    """The package of the plug-in, as its users import it."""
    with patch.object(sys, "path", [str(PACKAGE), *sys.path]):
        import onnxruntime_ep_quantglow

    return onnxruntime_ep_quantglow


@cache
def register() -> None:
    """Build the library once in this process, and register it."""
    folder = Path(tempfile.mkdtemp(prefix="quantglow-ep-"))
    library, module = build(folder), package()
    with patch.object(module, "get_library_path", lambda: str(library)):
        module.register()


def session(
    model: Any,
    *,
    threads: int = 1,
    optimize: bool = True,
    options: onnxruntime.SessionOptions | None = None,
    **more: Any,
) -> Any:
    """A session with the provider, which does not give it up; ``more``: options of that."""
    register()
    options = options or onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if not optimize:
        level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.graph_optimization_level = level
    data = model if isinstance(model, str) else model.SerializeToString()
    providers: list[Any] = [(PROVIDER, {"num_threads": str(threads), **more}), CPU]
    opened = onnxruntime.InferenceSession(data, options, providers)
    opened.disable_fallback()
    return opened

"""Time of a call of quantglow's provider over the machine code that it runs.

The model is one small product.  A session's call is that of onnxruntime's Python package, which has
its own cost: an Identity on the CPU's provider shows it, and is subtracted.

::

    python -m benchmarks.providers.overhead LIBRARY
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import quantglow as qg
from benchmarks.providers.process import CPU, PROVIDER, register, session_options

ROUNDS, CALLS, WIDTH = 60, 400, 16


def model(op: str) -> onnx.ModelProto:
    """``x [1, 16]`` through one operator."""
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, WIDTH]) for n in "xy"]
    weights = [numpy_helper.from_array(np.eye(WIDTH, dtype=np.float32), "w")]
    inputs = ["x", "w"] if op == "MatMul" else ["x"]
    node = helper.make_node(op, inputs, ["y"])
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], weights[: len(inputs) - 1])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def bound_call(op: str, provider: str, folder: str) -> Callable[[], Any]:
    """A call of a session whose input and output are bound."""
    path = Path(folder) / f"{op}.onnx"
    onnx.save(model(op), path)
    options = {} if provider == CPU else {"num_threads": "1"}
    session = onnxruntime.InferenceSession(
        str(path), session_options(1), [provider], provider_options=[options]
    )
    session.disable_fallback()
    binding = session.io_binding()
    value = onnxruntime.OrtValue.ortvalue_from_numpy
    binding.bind_ortvalue_input("x", value(np.ones((1, WIDTH), np.float32)))
    binding.bind_ortvalue_output("y", value(np.zeros((1, WIDTH), np.float32)))
    return lambda: session.run_with_iobinding(binding)


def machine_code() -> Callable[[], Any]:
    """A call of the machine code alone, through ``ctypes``."""
    compiled: Any = qg.compile(model("MatMul"), num_threads=1)
    x, y = np.ones((1, WIDTH), np.float32), np.zeros((1, WIDTH), np.float32)
    call = compiled.specialisations.at({"x": x}).build.executable.native_call(["x"], ["y"])
    context = call.take_context()
    ends = (x, y)
    for position, end, offset in zip(call.positions, call.ends, call.offsets, strict=True):
        context.arguments[position] = ends[end].ctypes.data + int(offset)
    walk = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(call.walk)
    table, rows = context.table.ctypes.data, call.rows

    def run(*_: Any, alive: Any = (compiled, context, ends)) -> None:
        walk(table, rows)

    return run


def ctypes_call() -> Callable[[], Any]:
    """A call through ``ctypes`` of a function that does next to nothing."""
    labs = ctypes.CDLL(None).labs
    labs.argtypes, labs.restype = [ctypes.c_int64], ctypes.c_int64
    return lambda: labs(1)


def main(library: str) -> dict[str, float]:
    """Microseconds of a call, medians of interleaved rounds."""
    register(library)
    with TemporaryDirectory() as folder:
        calls = {
            "provider": bound_call("MatMul", PROVIDER, folder),
            "identity": bound_call("Identity", CPU, folder),
            "cpu": bound_call("MatMul", CPU, folder),
            "code": machine_code(),
            "ctypes": ctypes_call(),
        }
        rounds = [{name: timed(call) for name, call in calls.items()} for _ in range(ROUNDS)]
    figures = {name: median(each[name] for each in rounds) for name in calls}
    beyond = [
        (each["provider"] - each["identity"]) - (each["code"] - each["ctypes"]) for each in rounds
    ]
    return {**figures, "overhead": median(beyond)}


def timed(call: Callable[[], Any]) -> float:
    """Microseconds of a call."""
    call()
    start = time.perf_counter()
    for _ in range(CALLS):
        call()
    return 1e6 * (time.perf_counter() - start) / CALLS


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))

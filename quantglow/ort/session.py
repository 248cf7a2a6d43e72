"""Sessions of onnxruntime: guarded, under older opsets, or in a process of their own.

Bytes and arrays go in, arrays come out.  A model with a newer opset than onnxruntime's is converted
to an older one.  ``outputs`` is what a child process runs (``support.processes.isolation``).
Libraries of custom operators are never loaded: they are code of whoever wrote the model.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np

from quantglow.ort.kernel_guards import KERNEL_GUARDS, has_operator
from quantglow.support.arrays import Array, box, unbox
from quantglow.support.classes import cached_property
from quantglow.support.errors import FallbackError
from quantglow.support.observing import observer
from quantglow.support.processes.interrupts import endable
from quantglow.support.processes.threads import renew_after_fork
from quantglow.support.timeline import FOREIGN, span

NAME = "onnxruntime"
SILENT = 4
"""onnxruntime's log level "fatal": what goes wrong is raised, not printed."""

EXACT_SUMS = "session.x64quantprecision"
"""onnxruntime's option against saturation; it does nothing on other processors."""

REPEATING = frozenset({"Loop", "Scan", "SequenceMap"})
"""Operators that may run for any time on small values."""

QUICK = 0.005
"""Seconds; Ctrl-C waits for a run that takes no longer, which is not worth a thread (0.1 ms)."""

_inherited: list[Any] = []
"""Sessions of the parent process: to free one could wait for a thread that is not there."""

SESSIONS = 64
"""Models of single nodes that stay loaded for the interpreter."""


class Session:
    """A model (bytes, or the path of a file) loaded by onnxruntime.  ``run`` may be called from
    several threads.

    ``optimize``: let onnxruntime rewrite the graph.  ``exact_sums``: products of bytes are added
    in 32 bits on x86 without VNNI, too, where onnxruntime saturates them at 16 bits by default;
    only an optimized graph can be had so, and none with a QLinearConv of int8 by int8, whose
    session is loaded without.
    """

    def __init__(
        self,
        model: bytes | str,
        num_threads: int = 1,
        *,
        optimize: bool = True,
        exact_sums: bool = True,
    ) -> None:
        self._model = model
        self._options = {"optimize": optimize, "exact_sums": exact_sums}
        self._load = partial(_load_session, model, num_threads, optimize, exact_sums)
        self._repeats = isinstance(model, str) or has_operator(model, REPEATING)
        self._seconds = math.inf
        self._session = self._load()
        renew_after_fork(self)
        self.input_names: list[str] = [argument.name for argument in self.session.get_inputs()]

    @property
    def session(self) -> Any:
        """onnxruntime's session; a forked child loads one of its own."""
        if self._session is None:
            self._session = self._load()
        return self._session

    def on_threads(self, num_threads: int) -> Session:
        """The same model for another number of threads."""
        return Session(self._model, num_threads, **self._options)

    def forget_threads(self) -> None:
        """Leave the parent's session alone: another thread may have held locks of it, and to free
        it, as the garbage collector may do at any time, would wait for its threads."""
        _inherited.append(self._session)
        self._session = None

    @property
    def inputs(self) -> list[Any]:
        """``NodeArg`` of each input: name, type, shape."""
        return list(self.session.get_inputs())

    @property
    def outputs(self) -> list[Any]:
        """``NodeArg`` of each output."""
        return list(self.session.get_outputs())

    def run(self, feeds: Mapping[str, Any], names: list[str] | None = None) -> list[Any]:
        """The named outputs (None: all); arrays, and lists where an output is a sequence."""
        watcher = observer()
        if watcher is not None and isinstance(self._model, bytes):
            watcher.saw_model(self._model, feeds)
        options = runtime().RunOptions()
        call = partial(self.session.run, names, dict(feeds), options)
        with span("onnxruntime", FOREIGN):
            return self._results(call, options)

    def run_values(self, values: Mapping[str, Array]) -> list[Array]:
        """All outputs for values of a graph, of which it takes those that it has inputs for; arrays
        hold its sequences, optionals and maps, see ``box``."""
        feeds = {
            name: unbox(values[name]) if is_opaque else values[name]
            for name, is_opaque in self._opaque_inputs.items()
        }
        results = zip(self.run(feeds), self._opaque_outputs, strict=True)
        return [box(value) if is_opaque else value for value, is_opaque in results]

    @cached_property
    def _opaque_inputs(self) -> dict[str, bool]:
        """Whether each input is no tensor."""
        return {info.name: _is_opaque(info) for info in self.inputs}

    @cached_property
    def _opaque_outputs(self) -> list[bool]:
        """Whether each output is no tensor."""
        return list(map(_is_opaque, self.outputs))

    def _results(self, call: Callable[[], Any], options: Any) -> list[Any]:
        started = time.perf_counter()
        try:
            if self._repeats or self._seconds > QUICK:
                results = endable(call, lambda: setattr(options, "terminate", True))
            else:
                results = call()
        except failures() as error:
            raise FallbackError(f"onnxruntime cannot run the model: {error}") from error
        self._seconds = time.perf_counter() - started
        return list(results)


def output_types(model: bytes) -> dict[str, str]:
    """The types of a model's outputs by name, in onnxruntime's words; none of a model that it does
    not load."""
    try:
        return {info.name: info.type for info in open_session(model, 1).outputs}
    except FallbackError:
        return {}


def _is_opaque(info: Any) -> bool:
    """Whether a ``NodeArg`` is a sequence, an optional or a map."""
    return not info.type.startswith("tensor(")


def _load_session(model: bytes | str, num_threads: int, optimize: bool, exact_sums: bool) -> Any:
    """onnxruntime's session of a model.  Raises ``FallbackError``."""
    ort = runtime()
    options = ort.SessionOptions()
    if not optimize:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = num_threads
    options.inter_op_num_threads = 1
    options.log_severity_level = SILENT
    if exact_sums:
        options.add_session_config_entry(EXACT_SUMS, "1")
    cancel = getattr(options, "set_load_cancellation_flag", bool)  # since 1.21
    call = partial(_new_session, ort.InferenceSession, model, options)
    try:
        return endable(call, lambda: cancel(True))
    except failures() as error:
        if exact_sums:  # for these, it rewrites convolutions to nodes that it has no kernel for
            return _load_session(model, num_threads, optimize, exact_sums=False)
        raise FallbackError(f"onnxruntime cannot load the model: {error}") from error


def _new_session(kind: Any, model: bytes | str, options: Any) -> Any:
    """A session of onnxruntime's own kernels, also where ``use`` of the plug-in gives all sessions
    of this process its provider."""
    session = kind.__new__(kind)
    construct = getattr(kind.__init__, "__wrapped__", kind.__init__)
    construct(session, model, options, ["CPUExecutionProvider"])
    return session


def runtime() -> ModuleType:
    """onnxruntime, imported when a model needs it: that takes a quarter of a second."""
    import onnxruntime

    module: ModuleType = onnxruntime
    return module


def failures() -> tuple[type[Exception], ...]:
    """Exceptions of sessions: their types derive from RuntimeError or Exception only."""
    # Not runtime().capi: an import that Ctrl-C ended leaves the package without its attributes.
    state = import_module("onnxruntime.capi.onnxruntime_pybind11_state")
    types = [v for v in vars(state).values() if isinstance(v, type) and issubclass(v, Exception)]
    return (*types, RuntimeError, ValueError, TypeError)


def outputs(
    arrays: Sequence[Array],
    *,
    path: str | None,
    names: Sequence[str],
    optimize: bool,
    exact_sums: bool = True,
    output_names: Sequence[str] | None = None,
) -> list[Array]:
    """The outputs of a model, ``_output_names`` of them (None: all), for each sample in turn.

    ``arrays``: the inputs of the samples likewise, each sample in the order of ``names``; first
    comes the model itself, as bytes, if there is no ``path``.
    """
    inputs = list(arrays)
    model = inputs.pop(0).tobytes() if path is None else path
    session = Session(model, optimize=optimize, exact_sums=exact_sums)
    results: list[Array] = []
    for start in range(0, len(inputs), len(names)):
        feeds = dict(zip(names, inputs[start : start + len(names)], strict=True))
        results += map(
            np.asarray, session.run(feeds, None if output_names is None else list(output_names))
        )
    return results


def open_session(model: bytes, num_threads: int = 1, *, optimize: bool = True) -> Session:
    """The session of a model, see ``Session``.

    Raises ``FallbackError`` with onnxruntime's message.

    If onnxruntime refuses the model, older opsets are tried in which every operator means the same.

    Wrong ranks raise, also those that end the process otherwise.
    """
    model = guard_kernels(model)
    try:
        return Session(model, num_threads, optimize=optimize)
    except FallbackError as error:
        # Imported here because a process without nodes of the fallback needs no onnx.
        from quantglow.export.onnx.compatibility import downgrade, foreign_nodes

        for older in downgrade(model):
            try:
                return Session(older, num_threads, optimize=optimize)
            except FallbackError:
                continue
        if not (foreign := foreign_nodes(model)):
            raise
        raise FallbackError(
            f"{error}. Neither onnxruntime nor quantglow runs {', '.join(foreign)}. Remedy: export "
            "the model with ONNX's operators, or compile it with a code generator of yours, see "
            "examples/README.md."
        ) from error


def guard_kernels(model: bytes) -> bytes:
    """The model without what may end the process in kernels of onnxruntime."""
    if not has_operator(model, KERNEL_GUARDS.keys()):
        return model
    # Imported here because a process without nodes of the fallback needs no onnx.
    from quantglow.ort.shape_guards import guard_model

    return guard_model(model)


@lru_cache(SESSIONS)
def cached_session(model: bytes) -> Session:
    """The session of a model, loaded once."""
    return open_session(model)


def run_model(model: bytes, arrays: Sequence[Array]) -> list[Array]:
    """Every output of a model whose inputs are ``arrays``, in order; the meaning of ``External``
    nodes, which name this function."""
    session = cached_session(model)
    return session.run_values(dict(zip(session.input_names, arrays, strict=True)))

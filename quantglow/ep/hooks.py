"""The hooks: functions that the plug-in calls to claim, compile and prepare."""

from __future__ import annotations

import atexit
import ctypes
import itertools
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from quantglow.ep.claim_store import claim_graph
from quantglow.ep.graphs import input_arrays, read_model
from quantglow.ep.interface import (
    COUNTS,
    FUNCTIONS,
    MESSAGE_NBYTES,
    VERSION,
    CHooks,
    Pointer,
    Status,
    Word,
)
from quantglow.ep.models import PluggedModel, PluggedProgram
from quantglow.ep.options import ProviderOptions
from quantglow.ep.reports import Claim, remember
from quantglow.runtime.native.buffers import release_freed
from quantglow.runtime.native.native_call import NativeCall
from quantglow.support import debug
from quantglow.support.errors import BackendError, InputError, OptionError, QuantglowError

_numbers = itertools.count(1)
_models: dict[int, PluggedModel] = {}
_programs: dict[int, PluggedProgram] = {}
_library: list[Any] = []
_lock = threading.Lock()


def _say(message: int, error: BaseException) -> None:
    """Write an error where the plug-in reads it."""
    _write(message, f"{type(error).__name__}: {error}")


def _write(message: int, text: str) -> None:
    data = text.encode()[: MESSAGE_NBYTES - 1]
    ctypes.memmove(message, data + b"\0", len(data) + 1)


def _claim(model: Any, options: bytes, count: int, groups: Any, message: int) -> int:
    with suppress(OptionError):  # compiling raises it, and no session is made
        ProviderOptions.of(options.decode()).choose_cache()
    try:
        numbers, claim = claim_graph(model.contents, count)
    except QuantglowError as error:
        numbers, claim = {}, Claim(count, 0, 0, (" ".join(str(error).split()),))
    for position, number in numbers.items():
        groups[position] = number
    remember(claim)
    _write(message, str(claim))
    return claim.groups


def _compile(model: Any, options: bytes, message: int) -> int:
    chosen = ProviderOptions.of(options.decode())
    number = next(_numbers)
    _models[number] = PluggedModel.of(read_model(model.contents, is_kept=True), chosen)
    release_freed()
    return number


def _prepare(
    model: int, tensors: Any, count: int, may_wait: int, calls: int, program: Any, message: int
) -> int:
    plugged, out = _models[model], program.contents
    arrays = input_arrays(tensors, count)
    answer = plugged.answer(arrays, may_wait=bool(may_wait), calls=calls)
    out.way, out.most_calls = answer.way, answer.calls
    out.calls = plugged.part.counts.counter(answer.way).ctypes.data
    _write(message, answer.refusal)
    if answer.is_due is not None:
        out.is_due = answer.is_due.ctypes.data
    if answer.call is not None:
        if not plugged.programs:
            release_freed()  # onnxruntime has freed its weights by now
        _describe(plugged, answer.call, out)
    return 0


def _describe(plugged: PluggedModel, call: NativeCall, out: Any) -> None:
    """Write machine code where the plug-in reads it."""
    number = next(_numbers)
    _programs[number] = PluggedProgram(call)
    plugged.programs.append(number)
    out.number, out.check_count = number, call.checks
    out.pointer_count, out.output_count = len(call.positions), len(call.ranks)
    for name in ("walk", "rows", "threads", "begin", "join"):
        setattr(out, name, getattr(call, name))
    for name in ("positions", "ends", "offsets", "ranks", "dims"):
        setattr(out, name, getattr(call, name).ctypes.data)


def _load(model: int, session: int, is_ahead: int, message: int) -> int:
    plugged = _models[model]
    if is_ahead and not plugged.answers_meanwhile:
        return 0
    with plugged.lock:
        data = plugged.to_bytes()
        status: int = _library[0].qg_load(session, data, len(data), plugged.num_threads, message)
    return status


def _context(program: int, context: Any, message: int) -> int:
    plugged, out = _programs[program], context.contents
    memory = plugged.call.new_context()
    for name in ("arguments", "table", "outside", "state"):
        setattr(out, name, getattr(memory, name).ctypes.data)
    plugged.contexts[out.arguments] = memory
    return 0


def _give_back(program: int, context: Any, message: int) -> int:
    _programs[program].contexts.pop(context.contents.arguments).give_back()
    return 0


def _run(model: int, kernel: int, tensors: Any, count: int, message: int) -> int:
    try:
        results = _models[model].run(input_arrays(tensors, count))
    except InputError as refusal:
        _models[model].part.counts.refused += 1
        _write(message, str(refusal))
        return 1
    for position, result in enumerate(results):
        array = np.asarray(result, order="C")  # unlike ascontiguousarray, rank 0 stays
        dims = (Word * max(array.ndim, 1))(*array.shape)
        address = _library[0].qg_output(kernel, position, dims, array.ndim)
        if not address and array.size:
            raise BackendError(f"onnxruntime has no memory for output {position}")
        ctypes.memmove(address, array.ctypes.data, array.nbytes)
    return 0


def _save(
    model: int,
    options: bytes,
    is_embedded: int,
    path: bytes,
    machine: bytes,
    saved: Any,
    message: int,
) -> int:
    # Imported here because most processes save no code.
    from quantglow.ep.contexts import context_of, remember_context, write_beside

    plugged, out = _models[model], saved.contents
    shapes = ProviderOptions.of(options.decode()).shapes
    context = context_of(plugged.compiled, shapes, machine.decode())
    remember_context(context)
    stored = context if is_embedded else write_beside(context, os.fsdecode(path)).encode()
    plugged.saved.append(stored)
    out.data = ctypes.cast(ctypes.c_char_p(stored), Pointer).value
    out.nbytes = len(stored)
    return 0


def _drop(model: int, program: Any) -> None:
    plugged, gone = _models[model], program.contents
    plugged.part.counts.close(gone.calls)
    plugged.flags.pop(gone.is_due, None)
    if gone.number:
        plugged.programs.remove(gone.number)
        for context in _programs.pop(gone.number).contexts.values():
            context.give_back()


def _release(model: int) -> None:
    plugged = _models.pop(model, None)
    for number in plugged.programs if plugged is not None else ():
        program = _programs.pop(number)
        for context in program.contexts.values():
            context.give_back()


def _hook(function: Callable[..., int | None]) -> Callable[..., int | None]:
    """The function for C code: an error becomes -1 and a message."""

    def call(*arguments: Any) -> int | None:
        try:
            return function(*arguments)
        except BaseException as error:  # noqa: BLE001 - no exception passes through C code
            if not isinstance(error, QuantglowError):
                debug.log(1, f"a hook of the provider failed: {error!r}")
            if function not in (_drop, _release):
                _say(arguments[-1], error)
            return -1

    return call


HOOKS: Mapping[str, Callable[..., int | None]] = {
    "claim": _claim,
    "compile": _compile,
    "prepare": _prepare,
    "context": _context,
    "give_back": _give_back,
    "load": _load,
    "run": _run,
    "save": _save,
    "drop": _drop,
    "release": _release,
}


def install(path: str) -> None:
    """Load the plug-in and give it the hooks; Python's end takes them back.

    Raises ``BackendError`` for a plug-in of another version, ``OSError`` for a file that is none.
    """
    with _lock:
        if _library:
            return
        library = ctypes.CDLL(path)
        library.qg_output.restype = ctypes.c_void_p
        library.qg_load.argtypes = [Pointer, ctypes.c_char_p, Word, Status, Pointer]
        library.qg_output.argtypes = [ctypes.c_void_p, Word, ctypes.c_void_p, Word]
        functions = {name: FUNCTIONS[name](_hook(hook)) for name, hook in HOOKS.items()}
        hooks = CHooks(VERSION, **functions)
        if library.qg_set_hooks(ctypes.byref(hooks)):
            raise BackendError(
                f"the plug-in {path!r} is of another version than quantglow. Remedy: pip install "
                "-U quantglow onnxruntime-ep-quantglow."
            )
        _library.extend([library, hooks, functions])
        atexit.register(library.qg_set_hooks, None)


def counts() -> dict[str, int]:
    """The numbers of what the plug-in has done in this process, by ``interface.COUNTS``."""
    if not _library:
        return dict.fromkeys(COUNTS, 0)
    words = (Word * len(COUNTS)).in_dll(_library[0], "qg_counts")
    return dict(zip(COUNTS, words, strict=True))

"""The hooks: functions that the plug-in calls to claim, compile and prepare."""

from __future__ import annotations

import atexit
import ctypes
import itertools
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from quantglow.api.compile import compile_source
from quantglow.ep.claiming import claim_nodes
from quantglow.ep.graphs import input_arrays, read_model
from quantglow.ep.interface import COUNTS, FUNCTIONS, MESSAGE_NBYTES, VERSION, CHooks, Word
from quantglow.ep.reports import Claim, remember
from quantglow.importer.onnx import Source
from quantglow.ir.graph.signature import entering
from quantglow.ort.session import Session, open_session
from quantglow.runtime.compiled import CompiledModel
from quantglow.runtime.hybrid.fallback_model import FallbackModel
from quantglow.runtime.native.executable import LlvmExecutable
from quantglow.runtime.native.native_call import NativeCall, NativeContext
from quantglow.runtime.native.sequences import BatchedExecutable
from quantglow.runtime.programs.build import Compiler
from quantglow.support import debug
from quantglow.support.arrays import Array
from quantglow.support.classes import cached_property
from quantglow.support.errors import (
    BackendError,
    FallbackError,
    InputError,
    OptionError,
    QuantglowError,
)

_numbers = itertools.count(1)
_models: dict[int, PluggedModel] = {}
_programs: dict[int, PluggedProgram] = {}
_library: list[Any] = []
_lock = threading.Lock()


@dataclass(frozen=True)
class ProviderOptions:
    """The options of a session: ``ep.quantglowexecutionprovider.*``.

    num_threads  maximum number of threads of a call; all cores by default
    """

    num_threads: int | None = None

    @staticmethod
    def of(text: str) -> ProviderOptions:
        """The options from lines ``key=value``.  Raises ``OptionError``."""
        pairs = dict(line.partition("=")[::2] for line in text.splitlines() if line)
        known = {each.name for each in fields(ProviderOptions)}
        if unknown := sorted(pairs.keys() - known):
            raise OptionError(
                f"the provider has no option {unknown[0]!r}. Remedy: its options are "
                f"{', '.join(sorted(known))}."
            )
        threads = pairs.get("num_threads", "")
        if threads and not threads.isdecimal():
            raise OptionError(f"num_threads={threads!r} is no number. Remedy: give one from 1 on.")
        return ProviderOptions(int(threads) if threads else None)


@dataclass(frozen=True, eq=False)
class PluggedModel:
    """A model that quantglow compiled for a fused node, and the numbers of its programs.

    ``num_threads``: of calls that onnxruntime's own kernels answer.
    """

    source: Source
    compiled: CompiledModel | FallbackModel
    num_threads: int
    programs: list[int] = field(default_factory=list)

    @property
    def input_names(self) -> list[str]:
        """Names of the inputs, in the order of the fused node."""
        return [info.name for info in self.compiled.get_inputs()]

    def native_call(self, arrays: list[Array]) -> NativeCall | None:
        """The machine code for the shapes of some inputs; None where a call has more to do, and for
        shapes that quantglow refuses."""
        if not isinstance(self.compiled, CompiledModel):
            return None
        programs = self.compiled.specialisations
        signature = programs.signature
        feeds = dict(zip((port.name for port in signature.inputs), arrays, strict=True))
        entered = entering(signature.inputs, feeds)
        try:
            served = programs.at(entered)
        except InputError:
            return None
        executable = served.build.executable
        is_plain = not any(port.declared for port in signature.ports)
        if not isinstance(executable, LlvmExecutable | BatchedExecutable) or not is_plain:
            return None
        if served.case is not None and served.case.values:
            return None  # other values of the same shapes have other programs
        return executable.native_call(
            [port.name for port in signature.inputs], [port.name for port in signature.outputs]
        )

    def run(self, arrays: list[Array]) -> list[Array]:
        """All outputs; shapes that quantglow refuses go to onnxruntime's own kernels.  Raises
        ``InputError`` for those that these refuse, too."""
        feeds = dict(zip(self.input_names, arrays, strict=True))
        try:
            return self.compiled.run(None, feeds)
        except InputError as refusal:
            try:
                return self._in_onnxruntime.run(feeds)
            except FallbackError as error:
                raise InputError(f"{refusal} onnxruntime's own kernels: {error}") from error

    @cached_property
    def _in_onnxruntime(self) -> Session:
        return open_session(self.source.serialize(), self.num_threads)


@dataclass(frozen=True, eq=False)
class PluggedProgram:
    """The machine code for some shapes, and the contexts that the plug-in has."""

    call: NativeCall
    contexts: list[NativeContext] = field(default_factory=list)


def _say(message: int, error: BaseException) -> None:
    """Write an error where the plug-in reads it."""
    _write(message, f"{type(error).__name__}: {error}")


def _write(message: int, text: str) -> None:
    data = text.encode()[: MESSAGE_NBYTES - 1]
    ctypes.memmove(message, data + b"\0", len(data) + 1)


def _claim(model: Any, count: int, groups: Any, message: int) -> int:
    try:
        numbers, claim = claim_nodes(read_model(model.contents, is_kept=False))
    except QuantglowError as error:
        numbers, claim = {}, Claim(count, 0, 0, (" ".join(str(error).split()),))
    for name, number in numbers.items():
        groups[int(name.removeprefix("n"))] = number  # the plug-in calls nodes by their positions
    remember(claim)
    _write(message, str(claim))
    return claim.groups


def _compile(model: Any, options: bytes, message: int) -> int:
    chosen = ProviderOptions.of(options.decode())
    source = read_model(model.contents, is_kept=True)
    compiler = Compiler.of(num_threads=chosen.num_threads)
    compiled = compile_source(source, None, compiler)
    number = next(_numbers)
    _models[number] = PluggedModel(source, compiled, compiler.num_threads)
    return number


def _prepare(model: int, tensors: Any, count: int, program: Any, message: int) -> int:
    plugged, out = _models[model], program.contents
    call = plugged.native_call(input_arrays(tensors, count))
    if call is None:
        return 0
    number = next(_numbers)
    _programs[number] = PluggedProgram(call)
    plugged.programs.append(number)
    out.is_native, out.walk, out.rows, out.number = 1, call.walk, call.rows, number
    out.threads, out.begin, out.join = call.threads, call.begin, call.join
    out.pointer_count, out.output_count = len(call.positions), len(call.ranks)
    out.check_count = call.checks
    for name in ("positions", "ends", "offsets", "ranks", "dims"):
        setattr(out, name, getattr(call, name).ctypes.data)
    return 0


def _context(program: int, context: Any, message: int) -> int:
    plugged, out = _programs[program], context.contents
    memory = plugged.call.new_context()
    plugged.contexts.append(memory)
    for name in ("arguments", "table", "outside", "state"):
        setattr(out, name, getattr(memory, name).ctypes.data)
    return 0


def _run(model: int, kernel: int, tensors: Any, count: int, message: int) -> int:
    for position, result in enumerate(_models[model].run(input_arrays(tensors, count))):
        array = np.asarray(result, order="C")  # unlike ascontiguousarray, rank 0 stays
        dims = (Word * max(array.ndim, 1))(*array.shape)
        address = _library[0].qg_output(kernel, position, dims, array.ndim)
        if not address and array.size:
            raise BackendError(f"onnxruntime has no memory for output {position}")
        ctypes.memmove(address, array.ctypes.data, array.nbytes)
    return 0


def _release(model: int) -> None:
    plugged = _models.pop(model, None)
    for number in plugged.programs if plugged is not None else ():
        program = _programs.pop(number)
        for context in program.contexts:
            context.give_back()


def _hook(function: Callable[..., int | None]) -> Callable[..., int | None]:
    """The function for C code: an error becomes -1 and a message."""

    def call(*arguments: Any) -> int | None:
        try:
            return function(*arguments)
        except BaseException as error:  # noqa: BLE001 - no exception passes through C code
            if not isinstance(error, QuantglowError):
                debug.log(1, f"a hook of the provider failed: {error!r}")
            if function is not _release:
                _say(arguments[-1], error)
            return -1

    return call


HOOKS: Mapping[str, Callable[..., int | None]] = {
    "claim": _claim,
    "compile": _compile,
    "prepare": _prepare,
    "context": _context,
    "run": _run,
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

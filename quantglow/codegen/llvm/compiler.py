"""LLVM itself: IR text to object code, what processor this is, and LLVM's own linker.

The only module that loads LLVM's library, which takes 40 MB and longer than to load a small
network.  So it is imported where something has to be compiled, not at the top of other modules.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import llvmlite.binding as llvm

from quantglow.codegen.llvm.isa.target import Host, Settings, Target
from quantglow.support import debug
from quantglow.support.errors import BackendError

OPTIMIZATION = 3
"""LLVM's level of optimization."""

_engines: list[llvm.ExecutionEngine] = []
"""Their code stays loaded until the process ends."""


@cache
def _initialize() -> None:
    """Set LLVM up for this processor, once in a process."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()


@cache
def initialize_all() -> None:
    """Set LLVM up to generate code for other processors, once in a process."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


def set_option(option: str) -> None:
    """An option of LLVM, for all that this process compiles; once in a process."""
    llvm.set_option("", option)


def detect_host() -> Host:
    """This processor, as LLVM sees it."""
    _initialize()
    features = llvm.get_host_cpu_features()
    return Host(llvm.get_process_triple(), llvm.get_host_cpu_name(), features.flatten())


def target_machine(target: Target) -> llvm.TargetMachine:
    """LLVM's code generator of a target, of this processor or another one."""
    return code_generator(target.triple, target.cpu, target.features, target.settings)


def code_generator(triple: str, cpu: str, features: str, settings: Settings) -> llvm.TargetMachine:
    """LLVM's code generator in its own words."""
    _initialize()
    try:
        backend = llvm.Target.from_triple(triple)
    except RuntimeError:
        initialize_all()
        backend = llvm.Target.from_triple(triple)
    machine: llvm.TargetMachine = backend.create_target_machine(
        cpu=cpu,
        features=features,
        opt=OPTIMIZATION,
        reloc=settings.reloc,
        codemodel=settings.codemodel,
        abiname=settings.abi,
    )
    return machine


class _Generators(threading.local):
    """Code generators are for one thread at a time, as modules of one context are."""

    def __init__(self) -> None:
        self.of = cache(target_machine)


_generators = _Generators()


def compile_text(target: Target, text: str) -> bytes:
    """Object code of a module.  Raises ``BackendError`` with the text when LLVM refuses it.

    Several threads may compile at once.
    """
    debug.log(debug.KERNELS, text)
    generator, module = _generators.of(target), _parse_module(target, text)
    if debug.level() >= 4:
        debug.log(4, generator.emit_assembly(module))
    return emit_object(generator, module)


def assembly(target: Target, text: str) -> str:
    """Assembly of a module, which may be that of another processor.  Raises ``BackendError``."""
    return str(_generators.of(target).emit_assembly(_parse_module(target, text)))


def _parse_module(target: Target, text: str) -> llvm.ModuleRef:
    """A module for a target.  Raises ``BackendError`` with the text when LLVM refuses it."""
    try:
        module: llvm.ModuleRef = llvm.parse_assembly(target.isa.legal(text), llvm.create_context())
        module.verify()
    except RuntimeError as error:
        raise BackendError(f"LLVM refused a generated kernel: {error}\n{text}") from error
    module.triple = target.triple
    module.data_layout = str(_generators.of(target).target_data)
    return module


def join_modules(texts: Sequence[str]) -> llvm.ModuleRef:
    """One module with all that some texts define.  Raises ``RuntimeError`` for damaged texts."""
    context = llvm.create_context()
    module: llvm.ModuleRef = llvm.parse_assembly(texts[0], context)
    for text in texts[1:]:
        module.link_in(llvm.parse_assembly(text, context))
    module.verify()
    return module


def emit_object(generator: llvm.TargetMachine, module: llvm.ModuleRef) -> bytes:
    """``generator.emit_object(module)``, with other threads at work meanwhile."""
    emit = emit_without_lock()
    if emit is None:
        return bytes(generator.emit_object(module))
    library = llvm.ffi.lib
    with llvm.ffi.OutputString() as error:
        buffer = emit(generator, module, 1, error)
        if not buffer:
            raise BackendError(f"LLVM cannot generate code: {error}")
    try:
        start, size = library.LLVMPY_GetBufferStart(buffer), library.LLVMPY_GetBufferSize(buffer)
        return ctypes.string_at(start, size)
    finally:
        library.LLVMPY_DisposeMemoryBuffer(buffer)


@cache
def emit_without_lock() -> Any:
    """LLVM's code generation without llvmlite's lock, which lets one thread at a time into LLVM;
    None where this llvmlite has it elsewhere.

    LLVM needs no lock where each thread has a context and a generator of its own.
    """
    try:
        locked = llvm.ffi.lib.LLVMPY_TargetMachineEmitToMemory
        emit = ctypes.CDLL(llvm.ffi.lib._name).LLVMPY_TargetMachineEmitToMemory
        emit.argtypes, emit.restype = locked.argtypes, locked.restype
    except (AttributeError, OSError) as error:
        debug.log(1, f"kernels are compiled one after the other: {error}")
        return None
    return emit


def link_by_llvm(target: Target, objects: Mapping[str, bytes]) -> dict[str, int]:
    """Addresses of the symbols that each object defines, loaded by LLVM."""
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target_machine(target))
    for code in objects.values():
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _engines.append(engine)
    return {symbol: engine.get_function_address(symbol) for symbol in objects}

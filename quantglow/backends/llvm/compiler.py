"""LLVM itself: IR text to object code, what processor this is, and LLVM's own linker.

The only module that loads LLVM's library, which takes 40 MB and longer than to load a small
network.  So it is imported where something has to be compiled, not at the top of other modules.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import cache

import llvmlite.binding as llvm

from quantglow import debug
from quantglow.backends.llvm.target import SETTINGS, Host, Target
from quantglow.errors import BackendError


@cache
def initialize() -> None:
    """Set LLVM up for this processor, once in a process."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()


@cache
def initialize_for(triple: str) -> None:
    """Set LLVM up for any triple; all code generators together take 10 MB."""
    initialize()
    if triple.split("-")[0] != llvm.get_process_triple().split("-")[0]:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()


def detect_host() -> Host:
    """This processor, as LLVM sees it."""
    initialize()
    features = llvm.get_host_cpu_features()
    return Host(llvm.get_process_triple(), llvm.get_host_cpu_name(), features.flatten())


def machine(target: Target) -> llvm.TargetMachine:
    """What generates the code of a target."""
    initialize_for(target.triple)
    made: llvm.TargetMachine = llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.features, **SETTINGS
    )
    return made


_machine = cache(machine)
_lock = threading.Lock()
"""Modules of one context, and generators, are for one thread at a time."""


def compiled(target: Target, text: str) -> bytes:
    """Object code of a module.  Raises ``BackendError`` with the text when LLVM refuses it."""
    debug.log(3, text)
    with _lock:
        generator = _machine(target)
        try:
            module = llvm.parse_assembly(text)
            module.verify()
        except RuntimeError as error:
            raise BackendError(f"LLVM refused a generated kernel: {error}\n{text}") from error
        module.triple = target.triple
        module.data_layout = str(generator.target_data)
        if debug.level() >= 4:
            debug.log(4, generator.emit_assembly(module))
        return bytes(generator.emit_object(module))


_engines: list[llvm.ExecutionEngine] = []
"""Their code stays loaded until the process ends."""


def linked_by_llvm(target: Target, objects: Mapping[str, bytes]) -> dict[str, int]:
    """Addresses of the symbols that each object defines, loaded by LLVM."""
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine(target))
    for code in objects.values():
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _engines.append(engine)
    return {symbol: engine.get_function_address(symbol) for symbol in objects}

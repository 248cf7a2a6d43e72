"""Kernels compiled and loaded: IR text to the address of a function.

Each kernel is an object of its own, named by a hash of its text and target, so that equal
kernels of any model share one, in this process and (``cache``) in later ones.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Sequence
from functools import cache

import llvmlite
import llvmlite.binding as llvm

from quantglow import debug
from quantglow.backends.llvm.cache import ObjectCache, user_cache
from quantglow.backends.llvm.target import Target, initialize_for
from quantglow.errors import BackendError

_SETTINGS = {"opt": 3, "reloc": "pic", "codemodel": "small"}
"""Code may lie anywhere and reaches its constants directly."""


class KernelLibrary:
    """Compiled kernels of one target, in this process."""

    def __init__(self, target: Target, cache: ObjectCache | None = None) -> None:
        self.target = target
        self.cache = cache or user_cache()
        self._machine = machine(target)
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine(target))
        self._addresses: dict[str, int] = {}
        self._lock = threading.Lock()

    def load(self, texts: Iterable[str], entry: str = "kernel") -> list[int]:
        """Addresses of the function ``entry`` of each module text, compiling what is new."""
        texts = list(texts)
        symbols = [self.symbol(text, entry) for text in texts]
        with self._lock:
            new = {s: t for s, t in zip(symbols, texts, strict=True) if s not in self._addresses}
            for symbol, text in new.items():
                code = self.object_code(symbol, text.replace(f"@{entry}(", f"@{symbol}("))
                self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
            if new:
                self._engine.finalize_object()
            for symbol in new:
                self._addresses[symbol] = self._engine.get_function_address(symbol)
        return [self._addresses[symbol] for symbol in symbols]

    def symbol(self, text: str, entry: str) -> str:
        """A name that depends on everything the code depends on."""
        target = self.target
        settings = (target.triple, target.cpu, target.features, llvmlite.__version__)
        parts = (text, *settings, repr(_SETTINGS))
        digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()
        return f"quantglow_{entry}_{digest[:32]}"

    def object_code(self, symbol: str, text: str) -> bytes:
        """The object of a module that defines ``symbol``: from the cache, or compiled and kept."""
        code = self.cache.get(symbol)
        if code is None:
            code = self.compile(text)
            self.cache.put(symbol, code)
        return code

    def compile(self, text: str) -> bytes:
        """Object code of a module.  Raises ``BackendError`` with the text when LLVM refuses it."""
        debug.log(3, text)
        try:
            module = llvm.parse_assembly(text)
            module.verify()
        except RuntimeError as error:
            raise BackendError(f"LLVM refused a generated kernel: {error}\n{text}") from error
        module.triple = self.target.triple
        module.data_layout = str(self._machine.target_data)
        if debug.level() >= 4:
            debug.log(4, self._machine.emit_assembly(module))
        return bytes(self._machine.emit_object(module))


def machine(target: Target) -> llvm.TargetMachine:
    """What generates the code of a target."""
    initialize_for(target.triple)
    made: llvm.TargetMachine = llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.features, **_SETTINGS
    )
    return made


@cache
def library(target: Target) -> KernelLibrary:
    """The library of a target; one in a process."""
    return KernelLibrary(target)


def addresses(target: Target, texts: Sequence[str], entry: str = "kernel") -> list[int]:
    return library(target).load(texts, entry)

"""Library of loaded kernels: IR text to addresses, within a budget of processor time.

Each kernel is an object of its own, named by a hash of its text and target, so that equal
kernels of any model share one, in this process and (``codegen.llvm.cache``) in later ones.

The budget, ``QUANTGLOW_COMPILE_SECONDS``, 1200 by default, is read when kernels are compiled.  It
is compared with an estimate from the first kernels, so that a model of 100,000 different layers is
refused after seconds, not after an hour.  Time of the threads that compile does not depend on what
else the machine does.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field

import llvmlite

from quantglow.codegen.llvm.cache import ObjectCache, choose_folder, user_cache
from quantglow.codegen.llvm.isa.target import Target
from quantglow.codegen.llvm.kernel import KernelCall
from quantglow.runtime.jit.linker import UnlinkableError, link
from quantglow.support import debug
from quantglow.support.arguments import limit
from quantglow.support.errors import CompileBudgetError
from quantglow.support.processes import threads
from quantglow.support.processes.quota import within_quota
from quantglow.support.processes.system import at_fork, processors
from quantglow.support.processes.threads import submit_task
from quantglow.support.timeline import COMPILER, span

VARIABLE = "QUANTGLOW_COMPILE_SECONDS"
ALLOWED_SECONDS = 1200.0

SAMPLE = 200
"""Number of kernels whose time is an estimate of that of the others."""

KERNEL = "kernel"
"""The function that a kernel's text defines."""

QUEUED = 16
"""Maximum number of kernels that wait for a thread to compile them."""

Submit = Callable[[str, str], Future[bytes]]
"""Begins to make the object of a symbol and its text."""

_loading = threading.RLock()
"""Held while kernels are compiled or loaded, for any target, and while this process forks: a child
has neither the threads that compile nor the owners of LLVM's locks.  One lock for all libraries, so
that threads which fork at the same time take turns."""

libraries: dict[Target, KernelLibrary] = {}
"""One for each target in a process."""


def _seconds_limit() -> float:
    """The default, or what the environment says.  Raises ``OptionError``."""
    text = os.environ.get(VARIABLE)
    return limit(VARIABLE, text) if text else ALLOWED_SECONDS


@dataclass
class CompileMeter:
    """The time that some kernels take.  ``total``: their number, None if it is not known."""

    total: int | None
    allowed: float = field(default_factory=_seconds_limit)
    done: int = 0
    spent: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def timed(self, compile_: Callable[[str, str], bytes]) -> Callable[[str, str], bytes]:
        """The same function; its time in any thread counts."""

        def counted(symbol: str, text: str) -> bytes:
            start = time.thread_time()
            code = compile_(symbol, text)
            with self._lock:
                self.done += 1
                self.spent += time.thread_time() - start
            return code

        return counted

    def check(self) -> None:
        """Raise ``CompileBudgetError`` if all kernels take longer than is allowed."""
        with self._lock:
            done, spent = self.done, self.spent
        total = done if self.total is None or done < SAMPLE else max(done, self.total)
        expected = spent * total / max(done, 1)
        if expected <= self.allowed:
            return
        raise CompileBudgetError(
            f"compiling {total} different kernels takes about {expected:.0f} s of processor time "
            f"({done} took {spent:.0f} s), and {self.allowed:g} s are allowed. Remedy: if you "
            f"trust the model, raise the limit in the environment: {VARIABLE}=inf. Kernels "
            "compiled so far are in the cache."
        )


at_fork(before=_loading.acquire, parent=_loading.release, child=_loading.release)


class KernelLibrary:
    """Compiled kernels of one target, in this process."""

    def __init__(self, target: Target, cache: ObjectCache | None = None) -> None:
        self.target = target
        self.cache = cache or user_cache()
        self._addresses: dict[str, int] = {}
        self._named: dict[str, str] = {}

    def find_addresses(self, symbols: Iterable[str]) -> list[int]:
        """Addresses of the code of symbols that are loaded."""
        return [self._addresses[symbol] for symbol in symbols]

    def load_symbols(self, symbols: Sequence[str]) -> bool:
        """Load code that the cache has, without its texts; whether all of it was there."""
        with _loading:
            objects: dict[str, bytes] = {}
            for symbol in dict.fromkeys(symbols):
                if symbol not in self._addresses:
                    if (code := self._cache(symbol)) is None:
                        return False
                    objects[symbol] = code
            if objects:
                self._addresses.update(self._loaded(objects))
        return True

    def load(self, texts: Iterable[str], entry: str = KERNEL) -> list[int]:
        """Addresses of the function ``entry`` of each module text, compiling what is new."""
        return self.find_addresses(self.load_texts(texts, entry))

    def load_texts(
        self, texts: Iterable[str], entry: str = KERNEL, number: int | None = None
    ) -> list[str]:
        """The symbols of the function ``entry`` of each module text, loaded.

        Texts are made while threads compile those before.

        Raises ``CompileBudgetError``, early if the number of texts is known.
        """
        meter = CompileMeter(number)
        symbols: list[str] = []
        coming: dict[str, Future[bytes]] = {}
        with _loading, _compiling_threads(meter.timed(self.object_code)) as submit:
            for text in texts:
                symbol = self.symbol(text, entry)
                symbols.append(symbol)
                if symbol not in self._addresses and symbol not in coming:
                    module = text.replace(f"@{entry}(", f"@{symbol}(")
                    meter.check()
                    threads.check_not_ending()
                    coming[symbol] = submit(symbol, module)
            objects = {symbol: future.result() for symbol, future in coming.items()}
            if objects:
                self._addresses.update(self._loaded(objects))
        return symbols

    def load_calls(self, names: Sequence[str] | None, calls: Sequence[KernelCall]) -> list[str]:
        """The symbols of the kernels of calls, loaded.

        Texts are made only of kernels that are neither known by the name of a call nor in the
        cache.  Without names all are made.
        """
        if names is None:
            return self.load_texts(call.ir for call in calls)
        with _loading:
            self._load_known(names)
            new = {n: c for n, c in zip(names, calls, strict=True) if n not in self._named}
            if new:
                loaded = self.load_texts((call.ir for call in new.values()), number=len(new))
                for name, symbol in zip(new, loaded, strict=True):
                    self._named[name] = symbol
                    self.cache.put(name, symbol.encode())
            return [self._named[name] for name in names]

    def _load_known(self, names: Sequence[str]) -> None:
        """Load the kernels of calls of these names that the cache has."""
        known_texts: dict[str, str] = {}
        objects: dict[str, bytes] = {}
        for name in dict.fromkeys(names):
            if name in self._named or (listed := self._cache(name)) is None:
                continue
            symbol = listed.decode()
            if symbol not in self._addresses and symbol not in objects:
                code = self._cache(symbol)
                if code is None:
                    continue
                objects[symbol] = code
            known_texts[name] = symbol
        if objects:
            self._addresses.update(self._loaded(objects))
        self._named.update(known_texts)

    def symbol(self, text: str, entry: str) -> str:
        """A name that depends on everything the code depends on."""
        target = self.target
        settings = (target.triple, target.cpu, target.features, llvmlite.__version__)
        parts = (text, *settings, repr(target.settings))
        digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()
        return f"quantglow_{entry}_{digest[:32]}"

    def object_code(self, symbol: str, text: str) -> bytes:
        """The object of a module that defines ``symbol``: from the cache, or compiled and kept."""
        code = self._cache(symbol)
        if code is None:
            code = self.compile(text)
            self.cache.put(symbol, code)
        return code

    def _cache(self, name: str) -> bytes | None:
        """The cached content; None if the code of all kernels is to be shown."""
        return None if debug.shows_kernels() else self.cache.get(name)

    def compile(self, text: str) -> bytes:
        """Object code of a module.  Raises ``BackendError`` with the text when LLVM refuses it."""
        # Only here: who finds all kernels in the cache does without LLVM.
        from quantglow.codegen.llvm.compiler import compile_text

        with span("LLVM", COMPILER):
            return compile_text(self.target, text)

    def _loaded(self, objects: Mapping[str, bytes]) -> dict[str, int]:
        """Addresses of the functions that the objects define, by symbol."""
        with debug.time_stage("link"):
            try:
                return link(objects, self.target.isa.linking)
            except UnlinkableError as error:
                debug.log(2, f"LLVM links {len(objects)} kernels: {error}")
            from quantglow.codegen.llvm.compiler import link_by_llvm

            return link_by_llvm(self.target, objects)


@contextmanager
def _compiling_threads(compile_: Callable[[str, str], bytes]) -> Iterator[Submit]:
    """A function that has threads compile a symbol's text; it waits while ``QUEUED`` texts do.

    Texts of kernels are large, so few of them wait.  An error, or Ctrl-C, drops those that wait,
    and ends the block as soon as the kernels being compiled are done.
    """
    workers = within_quota(len(processors()))
    pool = ThreadPoolExecutor(workers, "quantglow-compile")
    room = threading.Semaphore(workers + QUEUED)

    def submit(symbol: str, text: str) -> Future[bytes]:
        room.acquire()
        future = submit_task(pool, copy_context().run, compile_, symbol, text)
        future.add_done_callback(lambda _: room.release())
        return future

    try:
        yield submit
    finally:
        pool.shutdown(cancel_futures=True)


def library(target: Target) -> KernelLibrary:
    """The library of a target; one in a process."""
    kernel_library = libraries.get(target)
    return kernel_library or libraries.setdefault(target, KernelLibrary(target))


def use_cache_in(name: str, folder: str) -> None:
    """Keep kernels and programs of this process in a folder from now on, see ``choose_folder``."""
    choose_folder(name, folder)
    for each in list(libraries.values()):
        each.cache = user_cache()


def addresses(target: Target, texts: Sequence[str], entry: str = KERNEL) -> list[int]:
    """Addresses of the function ``entry`` of each module text, compiling what is new."""
    return library(target).load(texts, entry)

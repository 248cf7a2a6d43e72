"""Kernels may be compiled by several threads at once."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import llvmlite.binding as llvm
import pytest

from quantglow.codegen.llvm.cache import ObjectCache
from quantglow.codegen.llvm.compiler import (
    compile_text,
    emit_object,
    emit_without_lock,
    target_machine,
)
from quantglow.codegen.llvm.targets import resolve
from quantglow.runtime.jit.library import QUEUED, KernelLibrary
from quantglow.support.errors import BackendError
from quantglow.support.processes.system import processors


def text(number: int) -> str:
    """A kernel that writes a number, in a loop."""
    return f"""define void @kernel(ptr %args, i64 %begin, i64 %end) {{
entry:
  %p = load ptr, ptr %args
  br label %body
body:
  %i = phi i64 [ %begin, %entry ], [ %next, %body ]
  %at = getelementptr i64, ptr %p, i64 %i
  store i64 {number}, ptr %at
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %body, label %done
done:
  ret void
}}
"""


def test_threads_give_the_code_that_one_gives() -> None:
    target, texts = resolve("native"), [text(i % 7) for i in range(60)]
    expected = [compile_text(target, t) for t in texts]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda t: compile_text(target, t), texts)) == expected


def test_code_generation_needs_no_lock_of_llvmlite() -> None:
    assert emit_without_lock() is not None
    target = resolve("native")
    generator, module = target_machine(target), llvm.parse_assembly(text(3))
    module.triple, module.data_layout = target.triple, str(generator.target_data)
    assert emit_object(generator, module) == generator.emit_object(module)


def test_equal_texts_are_compiled_once_and_in_order() -> None:
    library = KernelLibrary(resolve("native"), ObjectCache(None))
    first, second, again = library.load(text(i) for i in (1, 2, 1))
    assert first == again != second


def test_a_kernel_that_llvm_refuses_is_shown_and_the_others_work() -> None:
    library = KernelLibrary(resolve("native"), ObjectCache(None))
    with pytest.raises(BackendError, match="refused"):
        library.load([text(1), "define void @kernel() {", text(2)])
    assert len(library.load([text(1), text(2)])) == 2


def test_ctrl_c_drops_kernels_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    library, compiled_texts = KernelLibrary(resolve("native"), ObjectCache(None)), []
    main = threading.main_thread().ident
    assert main is not None and threading.current_thread() is threading.main_thread()

    def slow(text: str) -> bytes:
        compiled_texts.append(text)
        if len(compiled_texts) == 4:
            signal.pthread_kill(main, signal.SIGINT)
        time.sleep(0.02)
        return b""

    monkeypatch.setattr(library, "compile", slow)
    with pytest.raises(KeyboardInterrupt):
        library.load(text(i) for i in range(1000))
    assert len(compiled_texts) < 500
    monkeypatch.undo()
    assert len(library.load([text(1), text(2)])) == 2


def test_few_texts_wait_for_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    library, done = KernelLibrary(resolve("native"), ObjectCache(None)), []
    ahead = []

    def texts() -> Iterator[str]:
        for i in range(100):
            ahead.append(i - len(done))
            yield text(i)

    def recorded(text: str) -> bytes:
        code = compile_text(library.target, text)
        done.append(text)
        return code

    monkeypatch.setattr(library, "compile", recorded)
    library.load(texts())
    assert max(ahead) <= QUEUED + len(processors()) + 1

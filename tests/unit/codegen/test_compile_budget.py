"""Programs of too many different kernels are refused after the first of them."""

from __future__ import annotations

import threading

import pytest

from quantglow.codegen.llvm.cache import ObjectCache
from quantglow.codegen.llvm.targets import resolve
from quantglow.runtime.jit import library as budget
from quantglow.runtime.jit.library import QUEUED, CompileMeter, KernelLibrary
from quantglow.support.errors import CompileBudgetError, OptionError
from quantglow.support.processes.system import processors


def after(done: int, spent: float, total: int | None) -> CompileMeter:
    """A meter of 1000 s that has seen kernels."""
    return CompileMeter(total, allowed=1000.0, done=done, spent=spent)


def test_an_estimate_from_the_first_kernels_refuses_them_all() -> None:
    after(budget.SAMPLE - 1, 10.0, 100_000).check()
    message = "100000 different kernels takes about 5000 s of .*200 took 10 s.*_COMPILE_SECONDS=inf"
    with pytest.raises(CompileBudgetError, match=message):
        after(budget.SAMPLE, 10.0, 100_000).check()


def test_the_time_spent_counts_where_the_number_is_unknown() -> None:
    after(5000, 1000.0, None).check()
    with pytest.raises(CompileBudgetError):
        after(5001, 1000.2, None).check()


def test_time_in_which_a_thread_waits_does_not_count() -> None:
    meter, asleep = CompileMeter(1), threading.Event()

    def slow(symbol: str, text: str) -> bytes:
        asleep.wait(0.2)
        return b""

    meter.timed(slow)("", "")
    assert meter.done == 1
    assert meter.spent < 0.1


def test_a_limit_of_the_environment_ends_a_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    head = "define void @kernel(ptr %args, i64 %begin, i64 %end)"
    texts = [f"{head} {{ ; {i}\n  ret void\n}}\n" for i in range(2 * (QUEUED + len(processors())))]
    library = KernelLibrary(resolve("native"), ObjectCache(None))
    monkeypatch.setenv(budget.VARIABLE, "1e-6")
    with pytest.raises(CompileBudgetError, match="allowed"):
        library.load(texts)
    monkeypatch.setenv(budget.VARIABLE, "inf")
    assert all(library.load(texts))


@pytest.mark.parametrize("text", ["0", "-1", "much", "nan"])
def test_a_limit_is_a_positive_number(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(budget.VARIABLE, text)
    with pytest.raises(OptionError, match=budget.VARIABLE):
        CompileMeter(1)

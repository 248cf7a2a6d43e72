"""The table of first calls."""

from __future__ import annotations

from benchmarks.latency import first_calls
from benchmarks.latency.first_calls import CACHES, Timing
from benchmarks.latency.first_calls_process import SIZES, Step, timed
from benchmarks.networks.free_networks import NETWORKS
from quantglow.support.timeline import COMPILER, span


def timing(cache: str, seconds: float, kernels: int = 0) -> Timing:
    step = Step("40", seconds, 2.0, {"lower": 0.25, "plan": 0.5}, kernels)
    return Timing("net", "compile", cache, (step,), ((40, 0.01 * seconds, 0.02),))


def test_a_row_has_the_median_of_a_step_over_the_rounds() -> None:
    rounds = [timing("empty", seconds, 3) for seconds in (9.0, 1.0, 2.0)]
    (line,) = first_calls.rows(rounds)
    titles = first_calls.table_head().splitlines()[0].strip("| ").split(" | ")
    cells = dict(zip(titles, line.strip("| ").split(" | "), strict=True))
    assert (cells["s"], cells["CPU"], cells["kernels"]) == ("2.00", "2.00", "3")
    assert cells["lower, plan"] == "0.75"


def test_an_empty_and_a_filled_cache_have_rows_of_their_own() -> None:
    lines = first_calls.rows([timing(cache, 1.0) for _ in range(2) for cache in CACHES])
    assert [line.split(" | ")[2] for line in lines] == list(CACHES)


def test_later_calls_have_the_median_of_ratios() -> None:
    (line,) = first_calls.later_rows([timing("empty", seconds) for seconds in (9.0, 1.0, 2.0)])
    assert line == "| net | compile | 40 | 20.0 | 20.0 | 1.00 |"


def test_a_step_counts_the_kernels_that_llvm_compiles_in_it() -> None:
    def call() -> None:
        with span("LLVM", COMPILER), span("emit"):
            pass

    step = timed("40", call)
    assert step.kernels == 1
    assert set(step.stages) == {"LLVM", "emit"}


def test_sizes_of_calls_are_among_those_of_the_network() -> None:
    for name, sizes in SIZES.items():
        for call in sizes:
            assert all(n in r for n, r in zip(call, NETWORKS[name].ranges, strict=True))

"""Sizes compute as integers do, and decisions about them become guards."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantglow.ir.symbolic.expression import SMALLEST, USUAL, symbol
from quantglow.ir.symbolic.guards import Guards
from quantglow.ir.symbolic.size import (
    Dim,
    Size,
    align,
    broadcast_shapes,
    decide,
    decide_equal,
    decide_in,
    decide_max,
    decide_min,
    fixed,
    has_free,
    integers,
    is_free,
    likely,
    maximum,
    minimum,
    surely_divides,
    surely_equal,
    symbols,
)
from quantglow.ir.types import DType, TensorType


def free_sizes(**hints: int) -> tuple[list[Dim], Guards]:
    sizes, guards = symbols(hints)
    return list(sizes.values()), guards


QUESTIONS: tuple[Callable[[Dim, int], bool], ...] = (
    lambda t, k: decide(t == k),
    lambda t, k: decide(t != k),
    lambda t, k: decide(t < k),
    lambda t, k: decide(t <= k),
    lambda t, k: decide(t > k),
    lambda t, k: decide(k >= t),
    lambda t, k: decide(t % 16 == k % 16),
    lambda t, k: decide(3 * t > 2 * k),
    lambda t, k: decide(t // max(k, 1) != 0),
    lambda t, k: decide_equal((1, t, 3), (1, k, 3)),
    lambda t, k: decide_equal((t, (t, 2)), (t, (k, 2))),
    lambda t, k: decide_in(t, (3, k, 40)),
    lambda t, k: likely(decide_min(t, k, 50)) == k,
    lambda t, k: likely(decide_max(3, t, k)) == k,
)


@given(
    st.integers(2, 70),
    st.integers(2, 70),
    st.lists(st.tuples(st.sampled_from(range(len(QUESTIONS))), st.integers(0, 70)), max_size=5),
)
def test_where_guards_hold_every_answer_is_the_same(hint: int, other: int, asked) -> None:
    (t,), guards = free_sizes(T=hint)
    answers = [QUESTIONS[which](t, k) for which, k in asked]
    assert answers == [QUESTIONS[which](hint, k) for which, k in asked]
    assert guards.hold({"T": hint})
    if guards.hold({"T": other}):
        assert answers == [QUESTIONS[which](other, k) for which, k in asked]


@given(
    st.integers(2, 70),
    st.integers(2, 70),
    st.lists(st.tuples(st.sampled_from(range(len(QUESTIONS))), st.integers(0, 70)), max_size=5),
)
def test_closed_guards_hold_where_open_ones_do(hint: int, other: int, asked) -> None:
    (t,), guards = free_sizes(T=hint)
    for which, k in asked:
        QUESTIONS[which](t, k)
    held = guards.hold({"T": other})
    guards.is_closed = True
    assert guards.hold({"T": other}) == held


def test_a_proof_needs_no_guard() -> None:
    (t, h), guards = free_sizes(T=100, H=7)
    assert decide(t > 1) and t * 384 // 384 == t and decide(t + h != 0) and (t * h) % t == 0
    assert not guards.recorded


def test_a_guard_proves_others() -> None:
    (t,), guards = free_sizes(T=100)
    assert decide(t >= 16)
    assert decide(t != 15) and decide(2 * t > 20)
    assert len(guards.recorded) == 1


@pytest.mark.parametrize(
    "use",
    [
        lambda t: bool(t),
        lambda t: t == 5,
        lambda t: 5 in (4, t),
        lambda t: (1, t) == (1, 5),
        lambda t: max(t, 7),
        lambda t: sorted((t, 7)),
        lambda t: 2 < t < 9,
        lambda t: [1, 2, 3].index(t),
    ],
)
@pytest.mark.undecided
def test_only_decide_asks_for_a_guard(use: Callable[[Dim], object]) -> None:
    (t,), guards = free_sizes(T=5)
    with pytest.raises(TypeError, match=r"depends on the shape: decide\(\) has to be asked"):
        assert use(t)
    assert not guards.recorded


def test_relations_of_all_shapes_are_plain_answers() -> None:
    (t,), guards = free_sizes(T=5)
    assert t == t + 0 and t - t == 0 and t < t + 1 and t != t + 2
    assert (3, 2 * t) == (3, t + t) and {t: 1}[t * 1] == 1
    assert t != "T" and t is not None
    assert not guards.recorded


def test_keys_are_told_apart_without_a_question() -> None:
    """Python hashes -1 as -2, and ``m - n`` as ``m - 2 * n`` if nothing is done about it."""
    (m, n), guards = free_sizes(M=9, N=2)
    assert {m - n: 1}.get(m - 2 * n) is None
    assert len({(m - n,), (m - 2 * n,), (m + -n,)}) == 2
    assert not guards.recorded


@pytest.mark.parametrize(
    "use",
    [
        int,
        float,
        range,
        lambda t: [0] * t,
        lambda t: np.zeros(t),
        lambda t: np.array([1, t], np.int64),
        lambda t: 1 / t,
        lambda t: float(t) * 0.5,
        lambda t: t.bit_length(),
        lambda t: fixed((1, t)),
    ],
)
def test_a_plain_number_fixes_the_value(use: Callable[[int], object]) -> None:
    (t,), guards = free_sizes(T=5)
    use(t)
    assert guards.hold({"T": 5})
    assert not guards.hold({"T": 6})


def test_no_decision_after_the_code_is_made() -> None:
    (t,), guards = free_sizes(T=5)
    guards.is_closed = True
    assert decide(t > 1)
    with pytest.raises(RuntimeError, match="after the code"):
        decide(t > 3)


def test_a_decision_that_was_made_holds_after_the_code_is_made() -> None:
    (t,), guards = free_sizes(T=5)
    assert decide(t != 8)
    guards.is_closed = True
    assert decide(t != 8)


def test_results_without_symbols_are_integers() -> None:
    (t,), _ = free_sizes(T=5)
    assert type(t - t) is int
    assert type(math.prod((t, 3)) // t) is int


def test_extremes_need_no_guard() -> None:
    (t, h), guards = free_sizes(T=100, H=7)
    highest, lowest = maximum((t, h, 3)), minimum((t, h, 3))
    assert (likely(highest), likely(lowest)) == (100, 3)
    assert not guards.recorded


def test_likely_is_the_hint() -> None:
    (t,), guards = free_sizes(T=100)
    assert likely(3 * t + 1) == 301 and likely(7) == 7 and likely(2.5) == 2.5
    assert not guards.recorded


def test_helpers_of_memory() -> None:
    (t,), _ = free_sizes(T=100)
    assert likely(align(t, 64)) == 128
    assert surely_divides(64, t * 128) and not surely_divides(64, t)


def test_broadcasting() -> None:
    (n, t), guards = free_sizes(N=3, T=100)
    assert surely_equal(broadcast_shapes((n, 1, 8), (t, 1)), (n, t, 8))
    assert not guards.recorded
    with pytest.raises(ValueError, match="broadcast"):
        broadcast_shapes((n, 8), (n, 7))


def test_arrays_of_sizes() -> None:
    (t,), _ = free_sizes(T=100)
    assert has_free(integers((1, t))) and not has_free(integers((1, 2)))
    assert integers((1, 2)).dtype == np.int64


def test_text_names_the_expression() -> None:
    (t,), guards = free_sizes(T=100)
    assert isinstance(t, Size) and is_free(t)
    assert guards.names[str(384 * t)] == (384 * t).expression  # type: ignore[attr-defined]


def test_sizes_of_two_programs_do_not_mix() -> None:
    (t,), _ = free_sizes(T=100)
    (u,), _ = free_sizes(T=100)
    with pytest.raises(ValueError, match="two programs"):
        t + u


def test_types_of_other_ranks_or_elements_differ_whatever_a_free_size_is() -> None:
    (n,), guards = free_sizes(N=4)
    kind = TensorType(DType.F32, (n, 4, 7))
    before = guards.texts
    assert kind != TensorType(DType.F32, (4, 1))
    assert kind != TensorType(DType.I32, (4, 4, 7))
    assert guards.texts == before
    assert kind == TensorType(DType.F32, (4, 4, 7))
    assert guards.texts != before


@pytest.mark.parametrize(
    ("refuses", "suiting"),
    [
        (lambda n, k: decide(n != k), lambda k: k),
        (lambda n, k: decide(3 * n + 1 != 3 * k + 1), lambda k: k),
        (lambda n, k: decide(n < k), lambda k: k),
        (lambda n, k: decide(n * 2 < 2 * k - 1), lambda k: k),
        (lambda n, k: not decide_equal((1, n), (1, k)), lambda k: k),
    ],
)
@pytest.mark.parametrize("k", [USUAL + 1, 11, 283])
def test_a_guess_is_made_again_where_another_one_suits(
    k: int, refuses: Callable[[Dim, int], bool], suiting: Callable[[int], int]
) -> None:
    """Answers that the first guess led to are forgotten with it; no guess changes twice."""
    sizes, guards = free_sizes(n=5)
    start = guards.snapshot

    def guessed() -> Size:
        return Size(symbol(guards.add_guess("late", USUAL)), guards)

    assert refuses(guessed(), k)
    assert guards.guess_again(start)
    assert not guards.recorded
    assert guards.hints == {"n": 5}
    late = guessed()
    assert likely(late) == suiting(k)
    assert not refuses(late, k)
    assert guards.revised == {"late"}
    assert decide(late != k + 1)
    assert not guards.guess_again(start)
    assert decide(sizes[0] != 6)
    assert not guards.guess_again(start), "sizes that are known are no guesses"


def test_no_guess_is_below_the_least_size_of_a_symbol() -> None:
    _, guards = free_sizes()
    start = guards.snapshot
    late = Size(symbol(guards.add_guess("late", USUAL)), guards)
    assert decide(late != SMALLEST - 1)
    assert not guards.guess_again(start)

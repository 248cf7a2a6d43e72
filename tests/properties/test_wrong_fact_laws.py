"""A file whose sizes rest on wrong facts gives right results or a typed error: no operand of its
programs leaves its buffer.

Facts are those of divisors that are negative or 0 at some length, of conditions and hints.  Where
texts are believed, as if the prover had a hole, the check of plans alone holds this law.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import quantglow as qg
from quantglow.ir.symbolic import guards, text
from quantglow.ir.symbolic.size import Size, size, symbols, to_expression
from quantglow.runtime.native import compilation, program_store
from tests.support import effort
from tests.support.forged_file import HEAD, HINT, forged
from tests.support.guarded import guarded

LENGTHS = (3, 7, 9, 10, 13, 24)
"""Lengths of calls; the hints of files lie among them."""

MOST_ELEMENTS = 10**6
"""Maximum number of elements of arrays that are compared."""

NUMBERS = st.sampled_from([0, 1, 2, 3, 5, 8, 50, 4096, 10**15])
LEAVES = st.one_of(st.just("T"), NUMBERS.map(str), st.integers(2, 20).map(lambda n: f"T-{n}"))
DIVISORS = st.one_of(
    st.integers(1, 9).map(str),
    st.integers(2, 20).map(lambda n: f"{n}-T"),
    st.integers(2, 20).map(lambda n: f"T-{n}"),
    st.just("T"),
)


def larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.tuples(inner, inner).map(lambda p: f"{p[0]}+({p[1]})"),
        st.tuples(inner, inner).map(lambda p: f"{p[0]}-({p[1]})"),
        st.tuples(NUMBERS, inner).map(lambda p: f"max({p[1]},0)*{p[0]}"),
        st.tuples(inner, inner).map(lambda p: f"max({p[0]},{p[1]})"),
        st.tuples(inner, DIVISORS).map(lambda p: f"floor({p[0]},{p[1]})"),
    )


SIZES = st.recursive(LEAVES, larger, max_leaves=4)
CONDITIONS = st.tuples(SIZES, st.sampled_from(["==", "!=", "<", ">="])).map(
    lambda p: f"{p[0]} {p[1]} 0"
)


def value(size: str, length: int) -> int:
    """The value of a size as a file has it, computed by Python.  Raises ``ZeroDivisionError``."""
    names = {"T": length, "max": max, "floor": lambda a, b: a // b}
    return int(eval(written(size).strip("{}"), {"__builtins__": {}}, names))


def believed(numerator: int, divisor: int) -> int:
    """A quotient whose divisor is taken to be positive."""
    if not isinstance(divisor, Size) and divisor < 1:
        raise ValueError("division by 0")
    free = next((s for s in (numerator, divisor) if isinstance(s, Size)), None)
    quotient = to_expression(numerator) // to_expression(divisor)
    return numerator // divisor if free is None else size(quotient, free.guards)


@cache
def written(size: str) -> str:
    """A size as a text of a graph has it, whatever the signs of its divisors."""
    sizes, _ = symbols({"T": HINT})
    with mock.patch.object(text, "quotient", believed):
        try:
            return text.size_text(text.size_from(text.parse_tree(size), sizes))
        except ValueError:
            return f"{{{size}}}"


@dataclass(frozen=True)
class Forged:
    """Lines of a graph, and what they compute of an array; None where they cannot."""

    body: str
    meaning: Callable[[np.ndarray], np.ndarray | None]


def slice_of(x: np.ndarray, start: int, size: int, step: int) -> np.ndarray | None:
    places = [start, start + (size - 1) * step]
    if size < 0 or (size and not all(0 <= place < len(x) for place in places)):
        return None
    return x[start + np.arange(size) * step]


def sliced(start: str, size: str, step: int) -> Forged:
    def meaning(x: np.ndarray) -> np.ndarray | None:
        return slice_of(x, value(start, len(x)), value(size, len(x)), step)

    fields = f"starts=({written(start)},), sizes=({written(size)},), steps=({step},)"
    line = f"'y': f32[{written(size)}] = Slice(x='x', {fields})"
    return Forged(f"{line}\noutput 'y' = 'y'\n", meaning)


def padded(before: str, after: str) -> Forged:
    def meaning(x: np.ndarray) -> np.ndarray | None:
        widths = value(before, len(x)), value(after, len(x))
        if min(widths) < 0 or max(widths) > MOST_ELEMENTS:
            return None
        return np.pad(np.sqrt(x), [widths])

    kind = f"f32[{written(f'T+({before})+({after})')}]"
    lines = (
        "'r': f32[{T}] = Sqrt(x='x')",
        f"'p': {kind} = Pad(x='r', before=({written(before)},), after=({written(after)},))",
        f"'y': {kind} = Relu(x='p')",
    )
    return Forged("\n".join([*lines, "output 'y' = 'y'\n"]), meaning)


def part(name: str, start: str, size: str) -> str:
    """The line of a slice."""
    fields = f"starts=({written(start)},), sizes=({written(size)},), steps=(1,)"
    return f"'{name}': f32[{written(size)}] = Slice(x='r', {fields})"


def joined(start: str, size: str, other: str) -> Forged:
    """Two slices of what another operator computes, written side by side into one buffer."""

    def meaning(x: np.ndarray) -> np.ndarray | None:
        one = slice_of(np.sqrt(x), value(start, len(x)), value(size, len(x)), 1)
        two = slice_of(np.sqrt(x), 0, value(other, len(x)), 1)
        return None if one is None or two is None else np.concatenate([one, two])

    lines = (
        "'r': f32[{T}] = Sqrt(x='x')",
        part("a", start, size),
        part("b", "0", other),
        f"'y': f32[{written(f'({size})+({other})')}] = Concat(parts=('a', 'b'), axis=0)",
    )
    return Forged("\n".join([*lines, "output 'y' = 'y'\n"]), meaning)


def repeated(count: str) -> Forged:
    """Copies of what another operator computes, side by side."""

    def meaning(x: np.ndarray) -> np.ndarray | None:
        copies = value(count, len(x))
        return np.tile(np.sqrt(x), copies) if 0 <= copies * len(x) <= MOST_ELEMENTS else None

    whole = written(f"({count})*T")
    lines = (
        "'r': f32[{T}] = Sqrt(x='x')",
        f"'e': f32[{written(count)}x{{T}}] = Expand(x='r', shape=({written(count)}, {{T}}))",
        f"'y': f32[{whole}] = Reshape(x='e', shape=({whole},))",
    )
    return Forged("\n".join([*lines, "output 'y' = 'y'\n"]), meaning)


def turned(rows: str, columns: str) -> Forged:
    """The input as a matrix, transposed."""

    def meaning(x: np.ndarray) -> np.ndarray | None:
        shape = value(rows, len(x)), value(columns, len(x))
        is_whole = min(shape) >= 0 and shape[0] * shape[1] == len(x)
        return x.reshape(shape).T.reshape(-1) if is_whole else None

    one, other, whole = map(written, (rows, columns, f"({rows})*({columns})"))
    lines = (
        f"'m': f32[{one}x{other}] = Reshape(x='x', shape=({one}, {other}))",
        f"'t': f32[{other}x{one}] = Transpose(x='m', perm=(1, 0))",
        f"'y': f32[{whole}] = Reshape(x='t', shape=({whole},))",
    )
    return Forged("\n".join([*lines, "output 'y' = 'y'\n"]), meaning)


def is_handy(size: str) -> bool:
    """Whether an array of a size is quickly compared at all lengths, or too large to exist."""
    try:
        actual = [abs(value(size, length)) for length in (HINT, *LENGTHS)]
    except ZeroDivisionError:
        return True
    return not any(MOST_ELEMENTS < each < 10**13 for each in actual)


PADS = SIZES.filter(is_handy)
GRAPHS = st.one_of(
    st.builds(sliced, SIZES, SIZES | st.just("2"), st.sampled_from([1, 2, -1])),
    st.builds(padded, PADS, PADS),
    st.builds(repeated, SIZES.filter(lambda size: is_handy(f"({size})*T"))),
    st.builds(turned, SIZES, DIVISORS.map(lambda divisor: f"floor(T,{divisor})") | SIZES),
    st.sampled_from([turned(n, f"floor(T,{n})") for n in ("1", "2", "3", "T-6", "10-T")]),
    st.builds(joined, SIZES, SIZES | st.just("2"), SIZES | st.just("T")),
)


@contextmanager
def as_for_users(folder: Path) -> Iterator[None]:
    """A cache of programs of its own, which is used, and memory between guard pages."""

    def allocator(target: object) -> Callable[[int], np.ndarray]:
        return lambda nbytes: guarded(np.zeros(nbytes, np.uint8), False)

    environment = {"QUANTGLOW_VERIFY": "0", "QUANTGLOW_CACHE_DIR": str(folder / "cache")}
    with (
        mock.patch.dict(os.environ, environment),
        mock.patch.object(compilation, "allocator", allocator),
        mock.patch.object(program_store, "allocator", allocator),
    ):
        yield


def answers(path: Path, lengths: Sequence[int]) -> list[tuple[np.ndarray, Any]]:
    """For each length what is fed and what comes back, an array or a typed error: of a model that
    is compiled, and of one whose programs are in the cache."""
    with as_for_users(path.parent):
        return [*_answers(path, lengths), *_answers(path, lengths)]


def _answers(path: Path, lengths: Sequence[int]) -> Iterator[tuple[np.ndarray, Any]]:
    try:
        model = qg.load(path, num_threads=1)
    except qg.QuantglowError:
        return
    for length in lengths:
        x = guarded(np.arange(1, length + 1, dtype=np.float32), True)
        try:
            yield x, model.run(None, {"x": x})[0]
        except qg.QuantglowError as error:
            yield x, error


def is_right(graph: Forged, x: np.ndarray, answer: Any) -> bool:
    """Whether an answer is an error, that of the model, or what the file says."""
    if isinstance(answer, qg.QuantglowError) or np.array_equal(answer, np.maximum(x, 0)):
        return True
    try:
        said = graph.meaning(x)
    except ZeroDivisionError:
        return False
    return said is not None and np.array_equal(answer, said)


@pytest.mark.slow_variants
@pytest.mark.parametrize("is_believed", [False, True])
@effort.moderate
@given(
    graph=GRAPHS,
    conditions=st.lists(CONDITIONS, max_size=2),
    hint=st.sampled_from([HINT, *LENGTHS]),
)
def test_wrong_facts_of_a_file_move_no_operand_out_of_its_buffer(
    is_believed: bool, graph: Forged, conditions: list[str], hint: int
) -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if is_believed:
            stack.enter_context(mock.patch.object(text, "quotient", believed))
        path = forged(folder / "f.qgm", graph.body, conditions, hint)
        replies = answers(path, [hint, *LENGTHS])
    wrong = [(len(x), answer) for x, answer in replies if not is_right(graph, x, answer)]
    assert wrong == []


FAR = "floor(1000*max(T-8,0),9-T)"
"""0 at 8, far below 0 from 10 on."""
KNOWN = {
    "a read": sliced(FAR, "2", 1),
    "a write": padded("floor(1000*max(T-8,1),9-T)", "4000*max(T-8,1)"),
    "a write beside another": joined(FAR, "2", "T"),
    "a backward read": sliced("floor(1000*max(T-8,1),9-T)-996", "2", -1),
}


@pytest.mark.parametrize("case", KNOWN)
@pytest.mark.parametrize("trusted", ["nothing", "divisors", "proofs"])
def test_known_holes_are_closed_three_times(case: str, trusted: str, tmp_path: Path) -> None:
    """By guards; where divisors are believed, by testing all that was proven; where that is not
    done, by the extents of operands."""
    graph, nothing = KNOWN[case], property(lambda self: iter(()))
    with ExitStack() as stack:
        if trusted != "nothing":
            stack.enter_context(mock.patch.object(text, "quotient", believed))
        if trusted == "proofs":
            stack.enter_context(mock.patch.object(guards.Guards, "answers", nothing))
            divisors = "quantglow.ir.symbolic.straight_line.Evaluation.divisors"
            stack.enter_context(mock.patch(divisors, return_value=()))
        replies = answers(forged(tmp_path / "f.qgm", graph.body), (8, 9, 10, 12))
    assert all(is_right(graph, x, answer) for x, answer in replies)
    assert len(replies) == 2 * 4


@pytest.mark.parametrize("kind", ["f64", "i64", "i8"])
def test_a_graph_that_reads_another_type_does_not_serve(kind: str, tmp_path: Path) -> None:
    body = f"{HEAD}'y': f32[{{T}}] = Relu(x='x')\noutput 'y' = 'y'\n".replace("f32", kind)
    body = body.replace("Relu(x='x')", "Slice(x='x', starts=(0,), sizes=({T},), steps=(1,))")
    for x, answer in answers(forged(tmp_path / "f.qgm", body), (9, 10)):
        np.testing.assert_array_equal(answer, x)

"""Paired comparison of readers on the same pages: is a difference more than chance?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import binomtest, wilcoxon


@dataclass(frozen=True)
class Reading:
    """One page: its lines that are right, and the number of its characters that are wrong."""

    right: tuple[bool, ...]
    characters: int
    wrong: int

    @staticmethod
    def of(lines: Sequence[str], read: Sequence[str]) -> Reading:
        """``read`` beside ``lines``: a line counts wherever it is found, characters in order."""
        expected = "\n".join(lines)
        wrong = edit_distance(expected, "\n".join(read))
        return Reading(tuple(line in read for line in lines), len(expected), wrong)


@dataclass(frozen=True)
class Comparison:
    """One reader beside the first on the same pages.

    ``lines_p`` is the exact p-value of McNemar's test (1947) on the lines that only one of them
    reads right; it takes lines for independent.  ``characters_p`` is the p-value of Wilcoxon's
    signed ranks (1945) on the wrong characters of pages.
    """

    reader: str
    pages: int
    characters: int
    wrong: int
    lines: int
    exact: int
    only_first: int
    only_this: int
    lines_p: float
    characters_p: float

    @staticmethod
    def of(reader: str, first: Sequence[Reading], other: Sequence[Reading]) -> Comparison:
        """Comparison of two readers.  Raises ``ValueError`` if their pages differ."""
        pairs = list(zip(first, other, strict=True))
        lines = [pair for a, b in pairs for pair in zip(a.right, b.right, strict=True)]
        only_first, only_this = lines.count((True, False)), lines.count((False, True))
        uneven = only_first + only_this
        more = np.array([b.wrong - a.wrong for a, b in pairs])
        return Comparison(
            reader=reader,
            pages=len(pairs),
            characters=sum(page.characters for page in other),
            wrong=sum(page.wrong for page in other),
            lines=len(lines),
            exact=sum(right for _, right in lines),
            only_first=only_first,
            only_this=only_this,
            lines_p=float(binomtest(only_first, uneven).pvalue) if uneven else 1.0,
            characters_p=float(wilcoxon(more).pvalue) if more.any() else 1.0,
        )

    @property
    def accuracy(self) -> float:
        """Characters less edit distance, over characters."""
        return 1 - self.wrong / self.characters


def comparisons(readings: Mapping[str, Sequence[Reading]]) -> list[Comparison]:
    """Each reader beside the first one, which is also beside itself."""
    first = next(iter(readings.values()))
    return [Comparison.of(reader, first, pages) for reader, pages in readings.items()]


def table(actual: Sequence[Comparison]) -> str:
    """A Markdown table."""
    rows = [
        f"| {c.reader} | {c.accuracy:.2%} | {c.exact}/{c.lines} | {c.only_first} | {c.only_this} "
        f"| {c.lines_p:.3f} | {c.characters_p:.3f} |"
        for c in actual
    ]
    head = f"| reader | characters | lines | only {actual[0].reader} | only this "
    return "\n".join([head + "| p, lines | p, characters |", "| --- " * 7 + "|", *rows])


def edit_distance(a: str, b: str) -> int:
    """Insertions, deletions and replacements between two texts (Wagner and Fischer, 1974)."""
    before = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        now = [i]
        for j, y in enumerate(b, 1):
            now.append(min(before[j] + 1, now[-1] + 1, before[j - 1] + (x != y)))
        before = now
    return before[-1]

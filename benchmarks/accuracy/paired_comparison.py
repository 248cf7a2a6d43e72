"""What readers read of the same pages, and whether one reads worse by more than chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import binomtest, wilcoxon


@dataclass(frozen=True)
class Reading:
    """Of one page: which of its lines are right, and how many of its characters are wrong."""

    right: tuple[bool, ...]
    characters: int
    wrong: int

    @staticmethod
    def of(lines: Sequence[str], read: Sequence[str]) -> Reading:
        """``read`` of ``lines``; a line counts wherever it was found, characters in their order."""
        expected = "\n".join(lines)
        wrong = edit_distance(expected, "\n".join(read))
        return Reading(tuple(line in read for line in lines), len(expected), wrong)


@dataclass(frozen=True)
class Comparison:
    """One reader beside the first on the same pages.

    ``lines_p``: how likely counts of lines that only one of them reads right are as uneven by
    chance, were both as good (McNemar, 1947; exact).  It takes lines for independent.
    ``characters_p``: the same for the wrong characters of pages (Wilcoxon's signed ranks, 1945).
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
        """Raises ``ValueError`` if they did not read the same pages."""
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
    """Each reader beside the first, the first beside itself."""
    first = next(iter(readings.values()))
    return [Comparison.of(reader, first, pages) for reader, pages in readings.items()]


def table(found: Sequence[Comparison]) -> str:
    """Markdown."""
    rows = [
        f"| {c.reader} | {c.accuracy:.2%} | {c.exact}/{c.lines} | {c.only_first} | {c.only_this} "
        f"| {c.lines_p:.3f} | {c.characters_p:.3f} |"
        for c in found
    ]
    head = f"| reader | characters | lines | only {found[0].reader} | only this "
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

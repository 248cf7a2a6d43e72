"""Features of a processor, found by code that calls no library: LLVM IR texts.

A text defines words of 32 bits; a feature is a set of bits of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Detection:
    """Code that asks the processors of a family for their features.

    helpers  functions and declarations
    words    instructions that define the words, from the beginning of a function
    bits     feature -> its words, each with a mask
    systems  words in the triples of systems on which it works
    """

    helpers: str
    words: str
    bits: Mapping[str, tuple[tuple[str, int], ...]]
    systems: tuple[str, ...] = ("linux",)

    def masks(self, features: Iterable[str]) -> dict[str, int]:
        """The bits of each word that a set of features needs."""
        found: dict[str, int] = {}
        for feature in features:
            for word, mask in self.bits[feature]:
                found[word] = found.get(word, 0) | mask
        return found


@dataclass(frozen=True)
class Requirement:
    """Features that code ``needs``, and LLVM's names of a processor on which asking for them
    runs: the least one of the family."""

    detection: Detection
    needs: tuple[str, ...]
    cpu: str
    features: str

    @property
    def attributes(self) -> str:
        """The attributes of functions that run on that processor."""
        return f'"target-cpu"="{self.cpu}" "target-features"="{self.features}" '


@dataclass(frozen=True)
class Choice:
    """The choice between levels, best first: the features that each ``needs``."""

    detection: Detection
    needs: tuple[tuple[str, ...], ...]

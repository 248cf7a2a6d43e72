"""Facts of an object, and the texts in its tables."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ObjectFacts:
    """Facts of an object.

    loaded_nbytes  code and data that a program holds, without symbols and relocations
    undefined      symbols that other objects have to define, in alphabetical order
    """

    loaded_nbytes: int
    undefined: tuple[str, ...]


def text_at(table: bytes, at: int) -> str:
    """The text at an offset, up to the next zero byte."""
    return table[at : table.index(b"\0", at)].decode()

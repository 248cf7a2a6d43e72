"""The options of the provider, which come as texts: ``ep.quantglowexecutionprovider.*``."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import get_args

from quantglow.ir.graph.signature import Shapes
from quantglow.runtime.jit.library import use_cache_in
from quantglow.runtime.programs.answers import AnswerLog, WhileCompiling
from quantglow.runtime.programs.build import MAX_THREADS, Compiler
from quantglow.support.errors import OptionError


@dataclass(frozen=True)
class ProviderOptions:
    """The options of a session.

    num_threads      maximum number of threads of a call; all cores by default
    while_compiling  what answers calls at new shapes: ``"wait"``, the program; ``"onnxruntime"``,
                     its own kernels at once, while a thread compiles the program
    cache_folder     the folder of kernels and programs, for the whole process; by default that of
                     ``QUANTGLOW_CACHE_DIR``, and none if it is empty
    shapes           combinations of input shapes that code ahead of time is for, as
                     ``x:1x3x224x224,m:1;x:2x3x224x224,m:2``
    """

    num_threads: int | None = None
    while_compiling: WhileCompiling = "wait"
    cache_folder: str | None = None
    shapes: tuple[Shapes, ...] = ()

    @staticmethod
    def of(text: str) -> ProviderOptions:
        """The options from lines ``key=value``.  Raises ``OptionError``."""
        pairs = dict(line.partition("=")[::2] for line in text.splitlines() if line)
        names = {each.name for each in fields(ProviderOptions)}
        if unknown := sorted(pairs.keys() - names):
            raise OptionError(
                f"the provider has no option {unknown[0]!r}. Remedy: its options are "
                f"{', '.join(sorted(names))}."
            )
        return ProviderOptions(
            _threads(pairs.get("num_threads", "")),
            _while_compiling(pairs.get("while_compiling")),
            pairs.get("cache_folder"),
            _shapes(pairs.get("shapes", "")),
        )

    def choose_cache(self) -> None:
        """Keep claims, kernels and programs where these options say.  Raises ``OptionError``."""
        if self.cache_folder is not None:
            use_cache_in("cache_folder", self.cache_folder)

    def compiler(self) -> Compiler:
        """The compiler with these options.  Raises ``OptionError``."""
        self.choose_cache()
        answers = AnswerLog.of(self.while_compiling)
        return Compiler.of(num_threads=self.num_threads, answers=answers)


def _shapes(text: str) -> tuple[Shapes, ...]:
    parts = [part for part in text.split(";") if part.strip()]
    return tuple(dict(map(_shape, part.split(","))) for part in parts)


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, separator, dims = text.strip().rpartition(":")
    sizes = [size for size in dims.split("x") if size]
    if not separator or not name or not all(size.isdecimal() for size in sizes):
        raise OptionError(
            f"shapes: {text.strip()!r} is not the shape of an input. Remedy: write "
            "NAME:1x3x224x224, a comma between inputs, and a semicolon between combinations."
        )
    return name, tuple(map(int, sizes))


def _threads(text: str) -> int | None:
    if not text:
        return None
    if not text.isdecimal() or not 1 <= int(text) <= MAX_THREADS:
        raise OptionError(
            f"num_threads={text!r} is no number of threads. Remedy: give one from 1 to "
            f"{MAX_THREADS}."
        )
    return int(text)


def _while_compiling(text: str | None) -> WhileCompiling:
    words: tuple[WhileCompiling, ...] = get_args(WhileCompiling)
    if text is None:
        return words[0]
    for word in words:
        if text == word:
            return word
    raise OptionError(
        f"while_compiling={text!r} is no way to answer. Remedy: say {' or '.join(words)}."
    )

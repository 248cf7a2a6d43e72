"""The options of the provider, which come as texts: ``ep.quantglowexecutionprovider.*``."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import get_args

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
    """

    num_threads: int | None = None
    while_compiling: WhileCompiling = "wait"
    cache_folder: str | None = None

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
        )

    def compiler(self) -> Compiler:
        """The compiler with these options.  Raises ``OptionError``."""
        if self.cache_folder is not None:
            use_cache_in("cache_folder", self.cache_folder)
        answers = AnswerLog.of(self.while_compiling)
        return Compiler.of(num_threads=self.num_threads, answers=answers)


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

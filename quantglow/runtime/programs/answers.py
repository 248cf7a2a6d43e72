"""Calls that onnxruntime answers while the program of their shapes is compiled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from quantglow.ir.graph.family import Case
from quantglow.support.arguments import choice
from quantglow.support.classes import Concise
from quantglow.support.processes.threads import ForkSafeLock

WhileCompiling = Literal["wait", "onnxruntime"]
WAIT, ONNXRUNTIME = get_args(WhileCompiling)

COMPILING, READY, FAILED = "compiling", "ready", "failed"
"""States of the program of a case."""

MOST_CASES = 256
"""Maximum number of cases whose calls are counted; the one that came first goes first."""


@dataclass(frozen=True)
class Answers:
    """The calls at some input shapes, by what answered them.

    shapes        ``x [2, 3, 64, 64]``, with the values of inputs that decide shapes
    onnxruntime   number of calls that onnxruntime answered, with the float model
    program       number of calls that the compiled program answered
    state         ``"compiling"``, ``"ready"`` or ``"failed"``: the state of the program
    """

    shapes: str
    onnxruntime: int = 0
    program: int = 0
    state: str = COMPILING


@dataclass(eq=False, repr=False)
class AnswerLog(Concise):
    """The calls of a model, in all of its parts; ``is_on``: onnxruntime answers in the meantime."""

    is_on: bool = True
    _answers: dict[Case, Answers] = field(default_factory=dict)
    _lock: ForkSafeLock = field(default_factory=ForkSafeLock)

    @staticmethod
    def of(while_compiling: str, *, is_on: bool = True) -> AnswerLog | None:
        """The log of a model with this option; None if calls wait.  Raises ``OptionError``."""
        choice("while_compiling", while_compiling, (WAIT, ONNXRUNTIME))
        return AnswerLog(is_on) if while_compiling == ONNXRUNTIME else None

    def __iter__(self) -> Iterator[Answers]:
        """The calls, by case."""
        with self._lock:
            return iter(list(self._answers.values()))

    def answered(self, case: Case, by: str) -> None:
        """Count a call that onnxruntime answered, or else the program."""
        with self._lock:
            answers = self._at(case)
            if by == ONNXRUNTIME:
                changed = replace(answers, onnxruntime=answers.onnxruntime + 1)
            else:
                changed = replace(answers, program=answers.program + 1, state=READY)
            self._answers[case] = changed

    def came(self, case: Case, state: str) -> None:
        """Note the state of a program."""
        with self._lock:
            self._answers[case] = replace(self._at(case), state=state)

    def _at(self, case: Case) -> Answers:
        answers = self._answers.get(case)
        if answers is None:
            if len(self._answers) >= MOST_CASES:
                del self._answers[next(iter(self._answers))]
            answers = Answers(_case_text(case))
        return answers


def _case_text(case: Case) -> str:
    """``x [1, 3, 8, 8], mask [1] = (16,)``."""
    values = case.value_map or {}
    parts = (
        f"{name} {list(shape)}" + (f" = {values[name]}" if name in values else "")
        for name, shape in case.shapes
    )
    return ", ".join(parts)

"""The choice among several kernels for one primitive."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from quantglow.codegen.llvm.kernel import KernelCall, first_call


@dataclass
class Form:
    """A kernel that applies or does not."""

    label: str
    applies: bool

    def call(self) -> KernelCall:
        return KernelCall("", (), items=1, work=0.0, label=self.label)


def test_the_first_kernel_that_applies_makes_the_call() -> None:
    forms = [("a", False), ("b", True), ("c", True)]
    assert first_call(partial(Form, *form) for form in forms).label == "b"


def test_kernels_behind_it_are_not_even_made() -> None:
    def never() -> Form:
        raise AssertionError("made")

    assert first_call([partial(Form, "a", True), never]).label == "a"

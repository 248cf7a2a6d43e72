"""This machine as one of another family: ``QUANTGLOW_AS=arm pytest -p tests.matrix.as_other
tests/matrix``.

Targets are the levels of ``plain_ir`` instead of this processor's; ``native`` is the best.
"""

from __future__ import annotations

import os
import sys

from quantglow.codegen.llvm import targets
from quantglow.codegen.llvm.isa.target import Target
from quantglow.support.errors import BackendError
from tests.matrix.plain_ir.translation import FAMILIES, SUFFIX, plain


def levels_of(family: str) -> tuple[str, ...]:
    """The levels of a family, best first."""
    return tuple(level.name for level in FAMILIES[family].levels)


def pretend(family: str) -> None:
    """Replace what this process knows of its processor, wherever it was imported to."""
    levels = levels_of(family)

    def runs_here(level: str) -> bool:
        return level in levels

    def resolve(name: str) -> Target:
        level = levels[0] if name == "native" else name.removesuffix(SUFFIX)
        if level not in levels:
            raise BackendError(f"target {name!r} does not run here")
        return plain(level)

    originals = {id(targets.resolve): resolve, id(targets.runs_here): runs_here}
    for module in [m for name, m in sys.modules.items() if name.startswith(("quantglow", "tests"))]:
        for name, value in list(vars(module).items()):
            if id(value) in originals and module.__name__ != plain.__module__:
                setattr(module, name, originals[id(value)])


if "QUANTGLOW_AS" in os.environ:
    pretend(os.environ["QUANTGLOW_AS"])

"""This machine as an AArch64 one: ``pytest -p tests.matrix.as_arm tests/matrix``.

Targets are the levels of ``arm_in_plain_ir`` instead of this processor's; ``native`` is the best.
"""

from __future__ import annotations

import sys

from quantglow.backends.llvm import targets
from quantglow.backends.llvm.isa.aarch64.levels import FAMILY
from quantglow.backends.llvm.isa.target import Target
from quantglow.errors import BackendError
from tests.matrix.arm_in_plain_ir import SUFFIX, arm

LEVELS = tuple(level.name for level in FAMILY.levels)


def runs_here(level: str) -> bool:
    return level in LEVELS


def resolve(name: str) -> Target:
    level = LEVELS[0] if name == "native" else name.removesuffix(SUFFIX)
    if level not in LEVELS:
        raise BackendError(f"target {name!r} does not run here")
    return arm(level)


def pretend() -> None:
    """Replace what this process knows of its processor, wherever it was imported to."""
    originals = {id(targets.resolve): resolve, id(targets.runs_here): runs_here}
    for module in [m for name, m in sys.modules.items() if name.startswith(("quantglow", "tests"))]:
        for name, value in list(vars(module).items()):
            if id(value) in originals and module.__name__ != "tests.matrix.arm_in_plain_ir":
                setattr(module, name, originals[id(value)])


pretend()

"""Limits of flash and RAM: a bundle that exceeds them is refused with its figures."""

from __future__ import annotations

from dataclasses import dataclass

from quantglow.bundle.contents import Contents
from quantglow.errors import BackendError


@dataclass(frozen=True)
class Limits:
    """Maximum bytes of code and weights, and of arena and stack; None: any."""

    flash_nbytes: int | None = None
    ram_nbytes: int | None = None

    def check(self, bundle: Contents) -> None:
        """Raise ``BackendError`` for a bundle that needs more."""
        code, weights = bundle.code_nbytes, bundle.made.weights.nbytes
        arena, stack = bundle.made.arena_nbytes, bundle.made.stack.most_nbytes
        refuse("flash", {"code": code, "weights": weights}, self.flash_nbytes)
        refuse("ram", {"arena": arena, "stack": stack}, self.ram_nbytes)


def refuse(kind: str, parts: dict[str, int], most: int | None) -> None:
    """Raise ``BackendError`` if the parts take more than ``most`` bytes."""
    total = sum(parts.values())
    if most is not None and total > most:
        shown = " + ".join(f"{nbytes:,} {name}" for name, nbytes in parts.items())
        raise BackendError(
            f"the model needs {total:,} bytes ({shown}), which is more than max_{kind}={most:,}. "
            "Remedy: `quantglow inspect --stage memory` shows what each layer needs; use smaller "
            "inputs or a smaller network."
        )

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
        arena, stack = bundle.made.arena_nbytes, bundle.made.stack.most_nbytes
        if self.flash_nbytes is not None:
            flash = bundle.flash
            parts = {"code": flash.code_nbytes, "weights": flash.weights_nbytes}
            refuse("flash", parts, self.flash_nbytes, f", {flash.method}")
        if self.ram_nbytes is not None:
            refuse("ram", {"arena": arena, "stack": stack}, self.ram_nbytes)


def refuse(kind: str, parts: dict[str, int], most: int, method: str = "") -> None:
    """Raise ``BackendError`` if the parts take more than ``most`` bytes, counted by a method."""
    total = sum(parts.values())
    if total > most:
        shown = " + ".join(f"{nbytes:,} {name}" for name, nbytes in parts.items())
        raise BackendError(
            f"the model needs {total:,} bytes ({shown}{method}), which is more than "
            f"max_{kind}={most:,}. "
            "Remedy: `quantglow inspect --stage memory` shows what each layer needs; use smaller "
            "inputs or a smaller network."
        )

"""The thread pool of a bundle: C code for the compiler of the program, on Linux."""

from __future__ import annotations

import re
from pathlib import Path

from quantglow.backends.llvm.isa.target import Target
from quantglow.bundle.contents import Contents
from quantglow.errors import OptionError

TEMPLATES = {kind: Path(__file__).with_name(f"pool.{kind}") for kind in ("h", "c")}


def check_pool(target: Target) -> None:
    """Raise ``OptionError`` for targets without Linux."""
    if "linux" not in target.triple:
        raise OptionError(
            f"threads=True: the pool is for Linux, and {target.name!r} is {target.triple}. "
            "Remedy: leave it out; NAME_run_part runs by threads of yours, where there are any."
        )


def pool_files(bundle: Contents) -> dict[str, str]:
    """``NAME_pool.h`` and ``NAME_pool.c``."""
    return {f"{bundle.name}_pool.{k}": filled(path, bundle) for k, path in TEMPLATES.items()}


def filled(template: Path, bundle: Contents) -> str:
    """The text of a template for a bundle."""
    weights, levels = bundle.has_weights, bool(bundle.made.parts)
    words = {
        "LEVEL_FIELD": "\n    int level;" if levels else "",
        "LEVEL_SUFFIX": "_at" if levels else "",
        "LEVEL_ARGUMENT": "pool->level, " if levels else "",
        "LEVEL_START": f"\n    pool->level = {bundle.name}_level();" if levels else "",
        "WEIGHTS_FIELD": "\n    const void *weights;" if weights else "",
        "WEIGHTS_PARAMETER": "const void *weights, " if weights else "",
        "WEIGHTS_ARGUMENT": "pool->weights, " if weights else "",
        "WEIGHTS_START": "\n    pool->weights = weights;" if weights else "",
        "UPPER": bundle.upper,
        "NAME": bundle.name,
    }
    text = template.read_text(encoding="utf-8")
    return re.sub("|".join(words), lambda found: words[found[0]], text)

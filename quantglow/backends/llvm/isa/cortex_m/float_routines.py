"""Arithmetic of float32 in instructions of 32-bit integers, for processors without it.

The functions have the names and results of the compiler's library (``__aeabi_fmul``, …), which
LLVM calls.  Each takes the short way for numbers that are normal, and whose result is; others,
zeros and subnormal ones too, go to functions called ``…_rare``, which save code, not time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

from quantglow.backends.llvm.isa.cortex_m.float_products import (
    divide,
    divide_rare,
    multiply,
    multiply_rare,
    quotient,
)
from quantglow.backends.llvm.isa.cortex_m.float_sums import (
    COMPARISONS,
    add,
    add_rare,
    compare,
    from_integer,
    shortened,
    subtract,
)
from quantglow.backends.llvm.isa.cortex_m.words import WEIGHTS

ROUTINES = (
    (
        r"\bf(add|sub)\b",
        {
            "__aeabi_fsub": subtract,
            "__aeabi_fadd": add,
            "add_rare": add_rare,
            "shortened": shortened,
        },
    ),
    (r"\bfmul\b", {"__aeabi_fmul": multiply, "multiply_rare": multiply_rare}),
    (r"\bfdiv\b", {"__aeabi_fdiv": divide, "divide_rare": divide_rare, "quotient": quotient}),
    (r"\bsitofp\b", {"__aeabi_i2f": from_integer}),
    (r"\bfcmp\b", {f"__aeabi_fcmp{name}": partial(compare, name) for name in COMPARISONS}),
)
"""Instructions of LLVM IR, and the functions that LLVM calls for them, with those of their own."""

LEVELS = (
    {"__aeabi_fsub"},
    {name for _, functions in ROUTINES for name in functions if name.startswith("__aeabi_")}
    - {"__aeabi_fsub"},
    {"add_rare", "multiply_rare", "divide_rare", "shortened"},
    {"quotient"},
)
"""Names of functions; those of each level call those of the next ones only."""


def routines(texts: Sequence[str]) -> str:
    """The functions that LLVM calls for some texts."""
    needed = [
        define()
        for pattern, functions in ROUTINES
        if any(re.search(pattern, text) for text in texts)
        for define in functions.values()
    ]
    return "\n".join([*needed, WEIGHTS]) if needed else ""

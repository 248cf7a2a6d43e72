"""An instruction set of your own: plain LLVM IR, its dot products without shuffles.

Run it: ``python examples/own_level.py MODEL SAMPLES``.  ``README.md`` beside it has the steps.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import quantglow as qg
from quantglow.codegen.llvm.builder import Builder
from quantglow.codegen.llvm.isa import portable
from quantglow.codegen.llvm.isa.target import Level
from quantglow.codegen.llvm.values import I16, I32, Operand, Value, splat, vector

# Step 1: an instruction set, which is another one but for the operations that differ.


class Shifted(portable.Portable):
    """Pairs of int16 as they lie in words of 32 bits: the low one is shifted up and back."""

    def word_products(self, b: Builder, x: Operand, y: Operand) -> Value:
        """int32 lanes ``x[2i] * y[2i] + x[2i + 1] * y[2i + 1]``, exactly: on little-endian
        processors element 2i is the lower half of word i."""
        lanes = self.vector_nbytes // 4
        halves, words = vector(2 * lanes, I16), vector(lanes, I32)
        sixteen = splat(words, "16")
        pairs = [b.cast("bitcast", halves, value, words) for value in (x, y)]
        lower = [b.op("ashr", words, b.op("shl", words, p, sixteen), sixteen) for p in pairs]
        upper = [b.op("ashr", words, pair, sixteen) for pair in pairs]
        return b.op("add", words, b.op("mul", words, *lower), b.op("mul", words, *upper))


# Step 2: a level, which has its name, LLVM's names of a processor and of features, and what
# processors need to run its code.

LEVEL = Level("shifted", "", "", Shifted(16, 16, unsigned_activations=False))


# Step 3: register it.  Then it is a target like any other.


def register() -> None:
    qg.register_target(replace(portable.FAMILY, levels=(LEVEL,)))


if __name__ == "__main__":
    register()
    compiled = qg.quantize_and_compile(*sys.argv[1:], target=LEVEL.name)
    print(LEVEL.name, compiled.report, sep="\n")

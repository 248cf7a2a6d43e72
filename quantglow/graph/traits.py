"""Facts about operators that passes and later stages ask for; operators declare them."""

from __future__ import annotations

from enum import Enum


class Trait(Enum):
    """A fact that holds for the nodes of an operator; its text is the law.

    The facts up to ``VIEW`` are mathematics and are tested as such.  The others say how the
    quantizer treats the operator.
    """

    ELEMENTWISE = "each result depends only on the elements of the operands at its own place"
    MOVES = "each result is a number of an operand, or one that the node brings"
    REARRANGES = "each result is an element of the only operand, and none is taken twice"
    CHOOSES = "rising functions of single elements may be applied before or after the operator"
    KEEPS_ZERO = "the result is 0 if all operands are 0"
    VIEW = "the result needs no memory of its own: it is the operand's, with other strides"

    PASSES_SPECIALS = "infinities and NaN of the operands show in the result as they are"
    KEEPS_QUANTIZATION = "the integer form has the quantization parameters of its operands"
    EXACT_STEPS = "the float form takes cheap IEEE operations only, so that any machine agrees"
    LIGHT = "the operator is too cheap to pay for conversions from and to float"
    FUNCTION = "the float form takes a function of many operations for each element"
    SERVES_READERS = "the operator is quantized for the sake of its readers only"
    FINISHES = "behind the last matrix product, the operator stays float with the result"

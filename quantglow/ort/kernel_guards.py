"""Table of what onnxruntime's kernels take for granted, operator by operator: ``KERNEL_GUARDS``.

onnxruntime refuses wrong ranks that it knows when it loads a model.  Others only show while it
runs, as those of values that a Loop carries: some kernels then end the process, or read elements
that are not there.  ``shape_guards`` puts checks in front of the operands of these operators, and
names their results.

The table knows no onnx: a process whose models have none of these operators does not import it.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass

from quantglow.support.protobuf import fields

VERSION = "1.32"
"""The onnxruntime in which all of this was observed."""

ML = "ai.onnx.ml"

Dims = tuple[int | None, ...]
"""A shape; None where a size is not known."""


@dataclass(frozen=True)
class RankCheck:
    """The rank of an operand; ``exact``, or at least so many axes."""

    position: int
    rank: int
    exact: bool = True

    def is_met(self, dims: Dims | None) -> bool:
        """Whether an operand of this shape, None if it is not known, surely has the rank."""
        if dims is None:
            return False
        return len(dims) == self.rank if self.exact else len(dims) >= self.rank


@dataclass(frozen=True)
class ScalesCheck:
    """The rank of an image is the number of scales by which it is resized."""

    position: int = 0


@dataclass(frozen=True)
class SizesCheck:
    """Sizes of an operand that are not 0: all but one, in each of ``shapes``.

    Reshape copies sizes that are 0 in its shape, and refuses to infer -1 if one of them is 0.
    """

    position: int
    shapes: tuple[tuple[int, ...], ...]

    def is_met(self, dims: Dims | None) -> bool:
        """Whether an operand of this shape, None if it is not known, surely has elements."""
        return dims is not None and all(dims)


@dataclass(frozen=True)
class ElementsCheck:
    """An operand of any rank has elements."""

    position: int

    def is_met(self, dims: Dims | None) -> bool:
        """Whether an operand of this shape, None if it is not known, surely has elements."""
        return dims is not None and all(dims)


@dataclass(frozen=True)
class RowsCheck:
    """All operands have elements, where there are several."""


@dataclass(frozen=True)
class ScalarCheck:
    """An operand of any rank has one element."""

    position: int

    def is_met(self, dims: Dims | None) -> bool:
        """Whether an operand of this shape, None if it is not known, surely has one element."""
        return dims is not None and all(size == 1 for size in dims)


OperandCheck = RankCheck | SizesCheck | ElementsCheck | ScalarCheck
"""Checks of one operand; ``ScalesCheck`` and ``RowsCheck`` become such for a node."""


@dataclass(frozen=True)
class KernelGuard:
    """The defense against a kernel.

    without         what happens without it
    checks          what must hold for the operands
    names_results   whether results need names, and bodies results of their own, see
                    ``export.onnx.compatibility``
    domain          the operator's domain; "" is the standard one
    """

    without: str
    checks: tuple[OperandCheck | ScalesCheck | RowsCheck, ...] = ()
    names_results: bool = False
    domain: str = ""


POSITION = "a position without elements is read beyond its end"
BODY = "results without a name are refused, and those that a body gives twice are wrong"

KERNEL_GUARDS: Mapping[str, KernelGuard] = {
    "BatchNormalization": KernelGuard(
        "in training, a statistic without a name ends the process", names_results=True
    ),
    "DFT": KernelGuard("a signal without axes ends the process", (RankCheck(0, 1, exact=False),)),
    "FeatureVectorizer": KernelGuard(
        "several operands without rows end the process", (RowsCheck(),), domain=ML
    ),
    "GRU": KernelGuard(
        "a sequence without steps or batch ends the process",
        (SizesCheck(0, ((-1, 0, 0), (0, 0, -1))),),
    ),
    "GridSample": KernelGuard(
        "an image without axes ends the process", (RankCheck(0, 1, exact=False),)
    ),
    "If": KernelGuard(BODY, names_results=True),
    "LSTM": KernelGuard(
        "a sequence without batch ends the process", (SizesCheck(0, ((-1, 0, 0),)),)
    ),
    "Loop": KernelGuard(
        "a number of trips or a condition without elements is read beyond its end, a state without "
        "a name ends the process, and results that are one value twice, or an input, are wrong",
        (ScalarCheck(0), ScalarCheck(1)),
        names_results=True,
    ),
    "Multinomial": KernelGuard("logits without rows end the process", (RankCheck(0, 2),)),
    "Resize": KernelGuard(
        "before opset 18, another number of scales than of axes ends the process", (ScalesCheck(),)
    ),
    "ReverseSequence": KernelGuard(
        "a sequence of fewer than two axes ends the process", (RankCheck(0, 2, exact=False),)
    ),
    "RoiAlign": KernelGuard(
        "operands of other ranks end the process",
        (RankCheck(0, 4), RankCheck(1, 2), RankCheck(2, 1)),
    ),
    "STFT": KernelGuard(
        "a signal or a window without axes ends the process",
        (RankCheck(0, 1, exact=False), RankCheck(2, 1)),
    ),
    "Scan": KernelGuard(BODY, names_results=True),
    "SequenceAt": KernelGuard(POSITION, (ScalarCheck(1),)),
    "SequenceErase": KernelGuard(POSITION, (ScalarCheck(1),)),
    "SequenceInsert": KernelGuard(POSITION, (ScalarCheck(2),)),
    "SequenceMap": KernelGuard(BODY, names_results=True),
    "Split": KernelGuard("a part without a name ends the process", names_results=True),
    "Upsample": KernelGuard(
        "another number of scales than of axes ends the process", (ScalesCheck(),)
    ),
}
"""Operators whose kernels need a guard."""

INNER_MESSAGES: Mapping[str, Mapping[int, str]] = {
    "ModelProto": {7: "GraphProto", 25: "FunctionProto"},
    "GraphProto": {1: "NodeProto"},
    "FunctionProto": {7: "NodeProto"},
    "NodeProto": {5: "AttributeProto"},
    "AttributeProto": {6: "GraphProto", 11: "GraphProto"},
}
"""Fields of ONNX's messages by number that lead to nodes (onnx.proto)."""

OP_TYPE = 4
"""Number of the field ``NodeProto.op_type``."""


def operator_types(model: bytes) -> frozenset[str] | None:
    """The types of all nodes of a model, those of subgraphs and functions included, read without
    onnx; None for bytes that are not read so."""
    types, pending = set[str](), [("ModelProto", memoryview(model))]
    try:
        while pending:
            kind, message = pending.pop()
            for number, _, payload in fields(message):
                if kind == "NodeProto" and number == OP_TYPE:
                    types.add(str(payload, "utf-8", "replace"))
                elif inner := INNER_MESSAGES[kind].get(number):
                    pending.append((inner, payload))
    except ValueError:
        return None
    return frozenset(types)


def has_operator(model: bytes, op_types: Set[str]) -> bool:
    """Whether a model has, or may have, a node of one of these types."""
    types = operator_types(model)
    return types is None or not types.isdisjoint(op_types)

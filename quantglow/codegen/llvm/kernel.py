"""Kernel calls, the tables of emit rules that make them, and the names of calls.

A kernel is a pure function of its IR text: ``void kernel(ptr args, i64 begin, i64 end)`` loads
its pointers from ``args`` and computes work items ``begin`` to ``end``.  Shapes and strides are
literals in the text; addresses are not, so equal layers share one kernel.

A name is a hash of all inputs of code generation.  Two calls of one name have the same kernel, so a
process that knows the symbol of one need not make the text of the other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeVar

import llvmlite
import numpy as np

import quantglow
from quantglow.codegen.llvm.isa.target import Target
from quantglow.ir.graph.attributes import encode
from quantglow.ir.graph.family import content_key
from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.program.program import Compute, Instruction, View
from quantglow.ir.symbolic.size import Dim
from quantglow.ir.types import TensorType
from quantglow.support.arrays import Array
from quantglow.support.classes import Concise, cached_property

AnyNode = TypeVar("AnyNode", bound=Node)

emit_rules: dict[type[Node], EmitRule] = {}
"""One rule for each primitive."""

instruction_rules: dict[type[Instruction], Callable[[Any, Target], KernelCall]] = {}
"""Rules for ``copy`` and ``fill``."""

TASK_VERSION = "1"
"""To be raised when equal tasks mean other work."""


@dataclass(frozen=True, eq=False, repr=False)
class KernelCall(Concise):
    """One kernel on its operands.

    ``code``: the IR text, or a function that makes it, called once and only on demand.
    ``pointers``: views of buffers, or constant arrays (packed weights) the backend owns.
    ``items``: independent pieces of work, split among threads in contiguous ranges.
    ``work``: rough operation count; small calls run on one thread.
    ``facts``: all that the text depends on of the values of constants and of the parameters of
    quantization; None: it may depend on each of them.
    ``checked``: it takes one pointer more, to an int64 of the running context, and stores an index
    there that is out of range.
    """

    code: str | Callable[[], str]
    pointers: tuple[View | Array, ...]
    items: Dim
    work: float
    label: str = ""
    facts: str | None = None
    checked: bool = False

    @cached_property
    def ir(self) -> str:
        """The IR text."""
        return self.code if isinstance(self.code, str) else self.code()


class Kernel(Protocol):
    """A generator of the code of one primitive."""

    @property
    def applies(self) -> bool:
        """Whether this form exists for the primitive on its target, and pays."""

    def call(self) -> KernelCall:
        """The kernel call."""


AnyKernel = TypeVar("AnyKernel", bound=Kernel)


def first_call(kernels: Iterable[Callable[[], Kernel]]) -> KernelCall:
    """The call of the first kernel that applies."""
    return first_kernel(kernels).call()


def first_kernel(kernels: Iterable[Callable[[], AnyKernel]]) -> AnyKernel:
    """The first kernel that applies."""
    return next(kernel for make in kernels if (kernel := make()).applies)


EmitRule = Callable[[Compute, Target], KernelCall]


def emits(*classes: type[Node]) -> Callable[[EmitRule], EmitRule]:
    """Register a rule for primitives."""

    def register(rule: EmitRule) -> EmitRule:
        emit_rules.update(dict.fromkeys(classes, rule))
        return rule

    return register


def call_names(
    steps: Sequence[Instruction], calls: Sequence[KernelCall], target: Target
) -> list[str] | None:
    """The names of the calls that ``steps`` became; None where the source of quantglow, or of the
    instruction set, cannot be read.
    """
    source = None if target.is_registered else _source_digest()
    if source is None:
        return None
    base = hashlib.sha256(source)
    digests: dict[int, bytes] = {}
    for part in (target.key, llvmlite.__version__):
        add(base, part)
    names = []
    for step, call in zip(steps, calls, strict=True):
        digest = base.copy()
        for part in step_parts(step, call.facts, digests):
            add(digest, part)
        names.append(f"quantglow_call_{digest.hexdigest()[:32]}")
    return names


def task_name(step: Instruction, target: Target) -> str:
    """The name of the work of an instruction on a target: a hash of types, strides and attributes,
    without values, scales or versions, so that it stays when quantglow changes."""
    digest = hashlib.sha256()
    for part in (TASK_VERSION, target.name, *step_parts(step, "", {})):
        add(digest, part)
    return digest.hexdigest()[:32]


def add(digest: hashlib._Hash, part: str | bytes) -> None:
    """Parts with their lengths: no two sequences of them look the same."""
    octets = part.encode() if isinstance(part, str) else part
    digest.update(len(octets).to_bytes(8, "little"))
    digest.update(octets)


def step_parts(
    step: Instruction, facts: str | None, digests: dict[int, bytes]
) -> Iterator[str | bytes]:
    """Everything that code generation may read, given the ``facts`` of the call; ``digests`` has
    those of the arrays met so far.
    """
    yield type(step).__name__
    yield repr(facts)
    every = facts is None
    order = {view.buffer: 0 for view in step.views}
    for number, buffer in enumerate(order):
        order[buffer] = number
        yield f"{number} {buffer.kind} {buffer.nbytes}"
        if buffer.value is not None and every:
            yield _array_digest(buffer.value, digests)
    for view in step.views:
        yield f"{order[view.buffer]} {view.strides} {view.offset}"
        yield from _type_parts(view.type, every)
    if not isinstance(step, Compute):
        yield encode(tuple(step.attributes.items()))
        return
    yield step.op.op
    yield encode(tuple((k, v) for k, v in step.op.attributes().items() if every or k != "out"))
    yield from _type_parts(step.op.type, every)
    yield from step.labels
    for operand in step.op.operands:
        yield from _type_parts(operand.type, every)
        if isinstance(operand, Constant) and every:
            yield _array_digest(operand.value, digests)


def _type_parts(kind: TensorType, every: bool) -> Iterator[str | bytes]:
    """A type, with its scales and zero points if ``every`` part counts; those of channels are
    faster as bytes than as text.
    """
    yield f"{kind.dtype} {kind.shape}"
    if kind.quant is not None:
        yield str(kind.quant.axis)
    if kind.quant is not None and every:
        yield np.asarray(kind.quant.scales, "<f4").tobytes()
        yield np.asarray(kind.quant.zero_points, "<i4").tobytes()


def _array_digest(array: Array, digests: dict[int, bytes]) -> bytes:
    """The ``content_key`` of an array, made once."""
    digest = digests.get(id(array))
    if digest is None:
        digest = digests[id(array)] = content_key(array)
    return digest


def code_versions() -> tuple[bytes | str, ...] | None:
    """The versions of all that makes code; None where the source of this package is unknown."""
    source = _source_digest()
    return None if source is None else (source, llvmlite.__version__, np.__version__)


@cache
def _source_digest() -> bytes | None:
    """Digest of the source of this package; None if it is not a folder of files."""
    folder = Path(quantglow.__file__).parent
    digest = hashlib.sha256()
    files = sorted([*folder.rglob("*.py"), *folder.rglob("*.ll")])
    try:
        for file in files:
            text = file.read_bytes()
            digest.update(f"{file.relative_to(folder)} {len(text)} ".encode())
            digest.update(text)
    except OSError:
        return None
    return digest.digest() if files else None

"""Names of programs: hashes of all that the texts of their kernels depend on.

Two programs of one name have the same kernels, so that whoever knows the symbols of one need not
make the texts of the other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import llvmlite
import numpy as np

import quantglow
from quantglow.backends.llvm.target import SETTINGS, Target
from quantglow.graph.attributes import encode
from quantglow.graph.node import Constant
from quantglow.instr.program import Compute, Instruction, View
from quantglow.types import Array, TensorType


def program_name(steps: Sequence[Instruction], target: Target) -> str | None:
    """The name of a program; None where the source of quantglow cannot be read."""
    source = source_digest()
    if source is None:
        return None
    found = hashlib.sha256(source)
    digests: dict[int, bytes] = {}
    settings = (repr(target), llvmlite.__version__, repr(SETTINGS))
    for part in (*settings, *(p for step in steps for p in step_parts(step, digests))):
        octets = part.encode() if isinstance(part, str) else part
        found.update(len(octets).to_bytes(8, "little"))
        found.update(octets)
    return f"quantglow_program_{found.hexdigest()[:32]}"


def step_parts(step: Instruction, digests: dict[int, bytes]) -> Iterator[str | bytes]:
    """What rules of code generation may look at; ``digests`` are of the arrays met so far."""
    yield type(step).__name__
    order = {view.buffer: 0 for view in step.views}
    for number, buffer in enumerate(order):
        order[buffer] = number
        yield f"{number} {buffer.kind} {buffer.nbytes}"
        if buffer.value is not None:
            yield array_digest(buffer.value, digests)
    for view in step.views:
        yield from view_parts(view, order[view.buffer])
    if not isinstance(step, Compute):
        yield encode(tuple(step.attributes.items()))
        return
    yield step.op.op
    yield encode(tuple(step.op.attributes().items()))
    yield from type_parts(step.op.type)
    yield from step.labels
    for operand in step.op.operands:
        yield from type_parts(operand.type)
        if isinstance(operand, Constant):
            yield array_digest(operand.value, digests)


def view_parts(view: View, buffer: int) -> Iterator[str | bytes]:
    """A view of the buffer of a number."""
    yield f"{buffer} {view.strides} {view.offset}"
    yield from type_parts(view.type)


def type_parts(kind: TensorType) -> Iterator[str | bytes]:
    """A type; the scales of channels are faster as bytes than as text."""
    yield f"{kind.dtype} {kind.shape}"
    if kind.quant is not None:
        yield str(kind.quant.axis)
        yield np.asarray(kind.quant.scales, "<f4").tobytes()
        yield np.asarray(kind.quant.zero_points, "<i4").tobytes()


def array_digest(array: Array, digests: dict[int, bytes]) -> bytes:
    """Of the element type, the shape and every byte."""
    found = digests.get(id(array))
    if found is None:
        head = f"{array.dtype.str} {array.shape}".encode()
        octets = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        found = hashlib.sha256(head + hashlib.sha256(octets.data).digest()).digest()
        digests[id(array)] = found
    return found


@cache
def source_digest() -> bytes | None:
    """Of the source of this package; None where it is not a folder of files."""
    folder = Path(quantglow.__file__).parent
    found = hashlib.sha256()
    files = sorted(folder.rglob("*.py"))
    try:
        for file in files:
            text = file.read_bytes()
            found.update(f"{file.relative_to(folder)} {len(text)} ".encode())
            found.update(text)
    except OSError:
        return None
    return found.digest() if files else None

"""An emitted program as one object, with functions that run it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from quantglow.backends.llvm.aot.clearing import clearing
from quantglow.backends.llvm.aot.facts import Facts
from quantglow.backends.llvm.aot.objects import object_file
from quantglow.backends.llvm.aot.part_function import PartFunction
from quantglow.backends.llvm.aot.processor import asking, guarded
from quantglow.backends.llvm.aot.run_function import UNSUPPORTED, RunFunction
from quantglow.backends.llvm.aot.shared_kernels import with_shared_kernels
from quantglow.backends.llvm.aot.stack import UNIT_NBYTES, Stack
from quantglow.backends.llvm.aot.weights import Placement, Weights, weights_of
from quantglow.backends.llvm.emitted import EmittedProgram
from quantglow.backends.llvm.isa.features import Requirement
from quantglow.backends.llvm.isa.target import Target
from quantglow.concise import Concise
from quantglow.errors import BackendError
from quantglow.memory.arena_order import ALIGNMENT

KERNEL = re.compile(r"@kernel\b")
INNER = "_here"
"""End of the names of functions that run on processors with all features of a level only."""
CALLS = Stack(64)
"""Stack for the return addresses of a run and of the kernel in it, and for what aligns them."""


@dataclass(frozen=True, eq=False, repr=False)
class ProgramObject(Concise):
    """Code of a program, with the functions ``NAME_run`` and ``NAME_run_observed``, and
    the constant ``NAME_facts``.

    code          an object in the format of the target's system
    weights       the constants, which are in the object or beside it
    stack         what a run takes, beside what functions that it needs take
    arena_nbytes  memory that a run writes
    kernels       names of the values that the kernels compute, in the order of the run
    parts         objects that it calls, by the beginning of their symbols
    """

    code: bytes
    weights: Weights
    stack: Stack
    arena_nbytes: int
    kernels: tuple[str, ...]
    parts: Mapping[str, bytes] = field(default_factory=dict)


def program_object(
    name: str,
    program: EmittedProgram,
    placement: Placement = Placement.OBJECT,
    source_hash: str = "",
) -> ProgramObject:
    """The object of a program, whose symbols begin with ``name``; ``source_hash``: that of its
    model.  Raises ``BackendError``.
    """
    program = with_shared_kernels(program)
    (weights,) = weights_of([program], placement)
    made = part_object(name, program, weights, name, source_hash)
    return replace(made, code=filled(made.code, weights))


def part_object(
    name: str, program: EmittedProgram, weights: Weights, home: str, source_hash: str
) -> ProgramObject:
    """The object of a program whose constants belong to the object called ``home``, which may be
    this one: they are not written yet.  Raises ``BackendError``.
    """
    slack_nbytes = program.target.isa.slack_nbytes
    functions = kernel_functions(name, program)
    kernels = [functions.get(row.kernel.ir, "") for row in program.rows]
    clear, constants = f"{name}_clear", f"{home}_weights"
    given = program, kernels, clear, weights, constants, ALIGNMENT
    needed = program.target.requirement
    end = INNER if needed else ""
    runs = [RunFunction(f"{name}_run{end}", *given, False)]
    runs += [RunFunction(f"{name}_run_observed{end}", *given, True)]
    if program.target.has_threads:
        runs += [PartFunction(f"{name}_run_part{end}", *given, False)]
    declarations = [f"declare void @{function}(ptr, i64, i64)" for function in functions.values()]
    placed = weights_text(home, program.target, weights, is_home=home == name)
    texts = [*placed, *declarations, *(run.text() for run in runs)]
    texts += [clearing(clear, program)] if program.unwritten else []
    arena_nbytes = program.arena_nbytes + slack_nbytes
    labels = tuple(runs[0].labels)
    facts = Facts(name, source_hash, program, arena_nbytes, weights.nbytes, labels)
    texts += facts.lines()
    renamed = [KERNEL.sub(f"@{function}", text) for text, function in functions.items()]
    inner = {run.name: run.parameters for run in runs}
    if program.target.scales_vectors:
        texts += vector_length(f"{name}_vlen{end}")
        inner[f"{name}_vlen{end}"] = ""
    texts += guards(name, inner, needed, program.target) if needed else ()
    public = [function.removesuffix(INNER) for function in inner]
    compiled = object_file(program.target, ["\n".join(texts), *renamed], public)
    stack = deepest(
        compiled.frames,
        [{*public}, {*inner}, {*functions.values()}, *program.target.isa.routine_levels],
    )
    return ProgramObject(compiled.code, weights, stack, arena_nbytes, labels)


def guards(
    name: str, inner: Mapping[str, str], needed: Requirement, target: Target
) -> Iterator[str]:
    """The public functions, which ask the processor before they call those called ``inner``, with
    their parameters."""
    yield from asking(name, needed, target.object_format.section(f".bss.{name}"))
    for function, parameters in inner.items():
        result = UNSUPPORTED if parameters else 0
        public = function.removesuffix(INNER)
        yield guarded(public, function, parameters, f"{name}_suits", needed, result)


def deepest(frames: Mapping[str, Stack], levels: Sequence[set[str]]) -> Stack:
    """The stack of functions that call each other: those of each level call those of the next ones,
    and some of all of them functions of their own."""
    total, left = CALLS, dict(frames)
    for level in levels:
        total += Stack.most(left.pop(name) for name in level & left.keys())
    return total + Stack.most(left.values())


def kernel_functions(name: str, program: EmittedProgram) -> dict[str, str]:
    """The text of each distinct kernel -> the name of its function."""
    texts = dict.fromkeys(row.kernel.ir for row in program.rows if not row.body)
    return {text: f"{name}_kernel{number}" for number, text in enumerate(texts)}


def vector_length(name: str) -> list[str]:
    """``int NAME(void)``: bits of a vector register of this processor."""
    return [
        f"define i32 @{name}() nounwind {{",
        "  %scale = call i32 @llvm.vscale.i32()",
        f"  %bits = mul i32 %scale, {8 * UNIT_NBYTES}",
        "  ret i32 %bits",
        "}",
        "declare i32 @llvm.vscale.i32()",
    ]


def weights_text(name: str, target: Target, weights: Weights, is_home: bool) -> list[str]:
    """The declaration of the constants: as a marker and zeros, where they are in the object."""
    end = f"align {ALIGNMENT}"
    if weights.placement is Placement.BIN:
        return []
    if weights.placement is Placement.C or not is_home:
        return [f"@{name}_weights = external hidden constant [{weights.nbytes} x i8], {end}"]
    marker = "".join(f"\\{byte:02X}" for byte in weights.marker)
    kinds = f"[{len(weights.marker)} x i8]", f"[{weights.nbytes - len(weights.marker)} x i8]"
    section = target.object_format.section(f".rodata.{name}")
    value = f'<{{ {kinds[0]} c"{marker}", {kinds[1]} zeroinitializer }}>'
    kind = f"<{{ {', '.join(kinds)} }}>"
    # LLVM must not believe the zeros.
    head = f"@{name}_weights = hidden"
    return [f"{head} externally_initialized constant {kind} {value}{section}, {end}"]


def filled(code: bytes, weights: Weights) -> bytes:
    """An object with the constants in place of the marker.  Raises ``BackendError``."""
    if weights.placement is not Placement.OBJECT:
        return code
    parts = code.split(weights.marker)
    if len(parts) != 2 or len(parts[1]) + len(weights.marker) < weights.nbytes:
        raise BackendError("the object has no place for the constants")
    end = len(parts[0]) + weights.nbytes
    return b"".join((parts[0], *weights.pieces(), code[end:]))

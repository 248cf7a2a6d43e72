"""Objects of emitted programs: clearing memory, checking features, choosing levels.

An object clears what kernels read before anyone writes it (``memory.unwritten``).

It asks whether the processor has the features that code needs, before the first kernel: a run on
another processor ends with a result, not with an illegal instruction.  The functions that ask are
compiled for the least processor of the family.  A byte notes that the answer was yes: in a virtual
machine, asking takes microseconds.

Where there is code for several levels, it is chosen at every run, so that nothing is kept between
runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from quantglow.codegen.llvm.builder import Builder
from quantglow.codegen.llvm.emitted import EmittedProgram
from quantglow.codegen.llvm.isa.target import LevelChoice, Requirement, Target
from quantglow.codegen.llvm.values import I32, I64, PTR, Value, vector
from quantglow.export.bundle.constants import Facts, Placement, Weights, array, weight_blocks
from quantglow.export.bundle.object_tables import UNIT_NBYTES, StackUse, object_file
from quantglow.export.bundle.run_functions import ARGUMENTS as PART
from quantglow.export.bundle.run_functions import UNSUPPORTED, PartFunction, RunFunction
from quantglow.export.bundle.shared_kernels import with_shared_kernels
from quantglow.ir.program.layout import ALIGNMENT
from quantglow.support.classes import Concise
from quantglow.support.errors import BackendError

BLOCK = vector(ALIGNMENT // 4, I32)
BORDER_NBYTES = 4

KERNEL = re.compile(r"@kernel\b")
INNER = "_here"
"""End of the names of functions that run on processors with all features of a level only."""
CALLS = StackUse(64)
"""Stack for the return addresses of a run and of the kernel in it, and for what aligns them."""

OBSERVER = "ptr %observer, ptr %user"


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
    stack: StackUse
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
    (weights,) = weight_blocks([program], placement)
    part = _part_object(name, program, weights, name, source_hash)
    return replace(part, code=_fill(part.code, weights))


def _part_object(
    name: str, program: EmittedProgram, weights: Weights, home: str, source_hash: str
) -> ProgramObject:
    """The object of a program whose constants belong to the object called ``home``, which may be
    this one: they are not written yet.  Raises ``BackendError``.
    """
    slack_nbytes = program.target.isa.slack_nbytes
    functions = kernel_functions(name, program)
    kernels = [functions.get(row.kernel.ir, "") for row in program.rows]
    clear, constants = f"{name}_clear", f"{home}_weights"
    contents = program, kernels, clear, weights, constants, ALIGNMENT
    needed = program.target.requirement
    end = INNER if needed else ""
    runs = [RunFunction(f"{name}_run{end}", *contents, False)]
    runs += [RunFunction(f"{name}_run_observed{end}", *contents, True)]
    if program.target.has_threads:
        runs += [PartFunction(f"{name}_run_part{end}", *contents, False)]
    declarations = [f"declare void @{function}(ptr, i64, i64)" for function in functions.values()]
    placed = _weights_text(home, program.target, weights, is_home=home == name)
    texts = [*placed, *declarations, *(run.text() for run in runs)]
    texts += [clearing(clear, program)] if program.unwritten else []
    arena_nbytes = program.arena_nbytes + slack_nbytes
    labels = tuple(runs[0].labels)
    facts = Facts(name, source_hash, program, arena_nbytes, weights.nbytes, labels)
    texts += facts.lines()
    renamed = [KERNEL.sub(f"@{function}", text) for text, function in functions.items()]
    inner = {run.name: run.parameters for run in runs}
    if program.target.scales_vectors:
        texts += _vector_length(f"{name}_vlen{end}")
        inner[f"{name}_vlen{end}"] = ""
    texts += _guards(name, inner, needed, program.target) if needed else ()
    public = [function.removesuffix(INNER) for function in inner]
    compiled = object_file(program.target, ["\n".join(texts), *renamed], public)
    stack = _deepest(
        compiled.frames,
        [{*public}, {*inner}, {*functions.values()}, *program.target.isa.routine_levels],
    )
    return ProgramObject(compiled.code, weights, stack, arena_nbytes, labels)


def _guards(
    name: str, inner: Mapping[str, str], needed: Requirement, target: Target
) -> Iterator[str]:
    """The public functions, which ask the processor before they call those called ``inner``, with
    their parameters."""
    yield from _asking(name, needed, target.object_format.section(f".bss.{name}"))
    for function, parameters in inner.items():
        result = UNSUPPORTED if parameters else 0
        public = function.removesuffix(INNER)
        yield _guard(public, function, parameters, f"{name}_suits", needed, result)


def _deepest(frames: Mapping[str, StackUse], levels: Sequence[set[str]]) -> StackUse:
    """The stack of functions that call each other: those of each level call those of the next ones,
    and some of all of them functions of their own."""
    total, left = CALLS, dict(frames)
    for level in levels:
        total += StackUse.most(left.pop(name) for name in level & left.keys())
    return total + StackUse.most(left.values())


def kernel_functions(name: str, program: EmittedProgram) -> dict[str, str]:
    """The text of each distinct kernel -> the name of its function."""
    texts = dict.fromkeys(row.kernel.ir for row in program.rows if not row.body)
    return {text: f"{name}_kernel{number}" for number, text in enumerate(texts)}


def _vector_length(name: str) -> list[str]:
    """``int NAME(void)``: bits of a vector register of this processor."""
    return [
        f"define i32 @{name}() nounwind {{",
        "  %scale = call i32 @llvm.vscale.i32()",
        f"  %bits = mul i32 %scale, {8 * UNIT_NBYTES}",
        "  ret i32 %bits",
        "}",
        "declare i32 @llvm.vscale.i32()",
    ]


def _weights_text(name: str, target: Target, weights: Weights, is_home: bool) -> list[str]:
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


def _fill(code: bytes, weights: Weights) -> bytes:
    """An object with the constants in place of the marker.  Raises ``BackendError``."""
    if weights.placement is not Placement.OBJECT:
        return code
    parts = code.split(weights.marker)
    if len(parts) != 2 or len(parts[1]) + len(weights.marker) < weights.nbytes:
        raise BackendError("the object has no place for the constants")
    end = len(parts[0]) + weights.nbytes
    return b"".join((parts[0], *weights.pieces(), code[end:]))


def _arguments(placement: Placement) -> dict[str, str]:
    """The arguments of functions, by the end of their names; processors with several levels have
    systems with threads."""
    weights = "ptr %weights, " if placement is Placement.BIN else ""
    parameters = f"ptr %arena, {weights}ptr %inputs, ptr %outputs"
    return {
        "run": parameters,
        "run_observed": f"{parameters}, {OBSERVER}",
        "run_part": f"{parameters}, {PART}",
    }


def _prefix(name: str, target: Target) -> str:
    """The beginning of the symbols of a level."""
    return f"{name}_{target.name.replace('-', '_')}"


def levels_object(
    name: str,
    programs: Sequence[EmittedProgram],
    choice: LevelChoice,
    placement: Placement = Placement.OBJECT,
    source_hash: str = "",
) -> ProgramObject:
    """The object that chooses, with those of the levels as its parts, and the constants of all.

    ``programs``: those of the levels of ``choice``.  Raises ``BackendError``.
    """
    names = [_prefix(name, program.target) for program in programs]
    blocks = weight_blocks(programs, placement)
    parts = [
        _part_object(level_program, program, block, name, source_hash)
        for level_program, program, block in zip(names, programs, blocks, strict=True)
    ]
    arena_nbytes = max(part.arena_nbytes for part in parts)
    kernels = max((part.kernels for part in parts), key=len)
    base, weights = programs[-1], blocks[-1]
    facts = Facts(name, source_hash, base, arena_nbytes, weights.nbytes, kernels)
    parameters = _arguments(placement)
    lines = [
        *_weights_text(name, base.target, weights, is_home=True),
        *_choosing(name, names, choice, parameters),
        *facts.lines(),
    ]
    runs = [f"{name}_{suffix}" for suffix in parameters]
    public = [f"{name}_level", *runs, *(f"{run}_at" for run in runs)]
    code = object_file(base.target, ["\n".join(lines)], public)
    deepest = StackUse.most(part.stack for part in parts)
    return replace(
        parts[-1],
        code=_fill(code.code, weights),
        stack=sum(code.frames.values(), deepest + CALLS),
        arena_nbytes=arena_nbytes,
        kernels=kernels,
        parts={level_program: part.code for level_program, part in zip(names, parts, strict=True)},
    )


def _choosing(
    name: str, names: Sequence[str], choice: LevelChoice, blocks: Mapping[str, str]
) -> Iterator[str]:
    """``NAME_level``, and the functions that run the code of that level, or of a given one."""
    yield choice.detection.helpers
    yield from _level_function(f"{name}_level", choice)
    for suffix, block in blocks.items():
        yield from run_at(f"{name}_{suffix}_at", [f"{level}_{suffix}" for level in names], block)
        yield f"define i32 @{name}_{suffix}({block}) nounwind {{"
        yield f"  %level = call i32 @{name}_level()"
        yield f"  %result = call i32 @{name}_{suffix}_at(i32 %level, {block})"
        yield "  ret i32 %result"
        yield "}"


def run_at(name: str, runs: Sequence[str], parameters: str) -> Iterator[str]:
    """The function ``name``, which calls that of ``runs`` whose number is given; the last one for
    numbers that no level has."""
    kinds = ", ".join(argument.split()[0] for argument in parameters.split(","))
    yield from (f"declare i32 @{run}({kinds})" for run in runs)
    yield f"define i32 @{name}(i32 %level, {parameters}) nounwind {{"
    cases = (f"i32 {index}, label %level{index}" for index in range(len(runs)))
    yield f"  switch i32 %level, label %level{len(runs) - 1} [ {' '.join(cases)} ]"
    for index, run in enumerate(runs):
        yield f"level{index}:"
        yield f"  %result{index} = call i32 @{run}({parameters})"
        yield f"  ret i32 %result{index}"
    yield "}"


def clearing(name: str, program: EmittedProgram) -> str:
    """``void NAME(ptr arena)``: zeros in the ranges of ``program.unwritten``, which has some."""
    borders = [str(border) for pair in program.unwritten for border in pair]
    section = program.target.object_format.section(f".rodata.{name}")
    table = f"@{name}.ranges = internal constant {array('i32', borders)}{section}"
    b = Builder()
    b.start_block("entry")
    with b.loop(0, len(borders), 2) as index:
        row = b.at(Value.of(f"@{name}.ranges", PTR), b.mul(index, BORDER_NBYTES))
        first, end = (b.load(I32, b.at(row, n), BORDER_NBYTES) for n in (0, BORDER_NBYTES))
        first, end = (b.cast("zext", I32, border, I64) for border in (first, end))
        with b.loop(first, end) as block:
            place = b.at(Value.of("%arena", PTR), b.mul(block, ALIGNMENT))
            b.store(BLOCK, "zeroinitializer", place, ALIGNMENT)
    b.do("ret void")
    text = "\n".join(b.lines)
    return f"{table}\ndefine internal void @{name}(ptr %arena) nounwind {{\n{text}\n}}\n"


def _level_function(name: str, choice: LevelChoice, attributes: str = "") -> Iterator[str]:
    """``int NAME(void)``: number of the first level whose features are all there."""
    detection, needs = choice.detection, choice.needs
    yield f"define i32 @{name}() nounwind {attributes}{{"
    yield detection.words
    chosen = str(len(needs) - 1)
    for index in reversed(range(len(needs) - 1)):
        has = "true"
        for word, mask in detection.masks(needs[index]).items():
            bits, same, both = (f"%{kind}.{index}.{word}" for kind in ("bits", "same", "both"))
            yield f"  {bits} = and i32 %{word}, {mask}"
            yield f"  {same} = icmp eq i32 {bits}, {mask}"
            yield f"  {both} = and i1 {has}, {same}"
            has = both
        yield f"  %chosen.{index} = select i1 {has}, i32 {index}, i32 {chosen}"
        chosen = f"%chosen.{index}"
    yield f"  ret i32 {chosen}"
    yield "}"


def _asking(name: str, needed: Requirement, section: str) -> Iterator[str]:
    """``i1 NAME_suits()``: whether this processor has what a program needs."""
    yield needed.detection.helpers
    yield f"@{name}_noted = internal global i8 0{section}, align 1"
    choice = LevelChoice(needed.detection, (needed.needs, ()))
    yield from _level_function(f"{name}_lacks", choice, needed.attributes)
    yield f"""
define i1 @{name}_suits() nounwind {needed.attributes}{{
  %noted = load atomic i8, ptr @{name}_noted monotonic, align 1
  %known = icmp ne i8 %noted, 0
  br i1 %known, label %yes, label %ask
ask:
  %lacks = call i32 @{name}_lacks()
  %suits = icmp eq i32 %lacks, 0
  br i1 %suits, label %note, label %no
note:
  store atomic i8 1, ptr @{name}_noted monotonic, align 1
  br label %yes
yes:
  ret i1 true
no:
  ret i1 false
}}
"""


def _guard(
    name: str, inner: str, parameters: str, question: str, needed: Requirement, result: int
) -> str:
    """The function ``name`` that runs ``inner``, or gives a result where ``question`` says no."""
    return f"""
define i32 @{name}({parameters}) nounwind {needed.attributes}{{
  %suits = call i1 @{question}()
  br i1 %suits, label %run, label %lacks
run:
  %result = call i32 @{inner}({parameters})
  ret i32 %result
lacks:
  ret i32 {result}
}}
"""

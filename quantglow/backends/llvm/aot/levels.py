"""One model for several levels of a processor: the code is chosen at every run, so that nothing is
kept between runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from quantglow.backends.llvm.aot.facts import Facts
from quantglow.backends.llvm.aot.objects import object_file
from quantglow.backends.llvm.aot.part_function import ARGUMENTS as PART
from quantglow.backends.llvm.aot.processor import level_function
from quantglow.backends.llvm.aot.program_object import (
    CALLS,
    ProgramObject,
    filled,
    part_object,
    weights_text,
)
from quantglow.backends.llvm.aot.stack import Stack
from quantglow.backends.llvm.aot.weights import Placement, weights_of
from quantglow.backends.llvm.emitted import EmittedProgram
from quantglow.backends.llvm.isa.features import Choice
from quantglow.backends.llvm.isa.target import Target

OBSERVER = "ptr %observer, ptr %user"


def arguments(placement: Placement) -> dict[str, str]:
    """The arguments of functions, by the end of their names; processors with several levels have
    systems with threads."""
    weights = "ptr %weights, " if placement is Placement.BIN else ""
    given = f"ptr %arena, {weights}ptr %inputs, ptr %outputs"
    return {
        "run": given,
        "run_observed": f"{given}, {OBSERVER}",
        "run_part": f"{given}, {PART}",
    }


def prefix(name: str, target: Target) -> str:
    """The beginning of the symbols of a level."""
    return f"{name}_{target.name.replace('-', '_')}"


def levels_object(
    name: str,
    programs: Sequence[EmittedProgram],
    choice: Choice,
    placement: Placement = Placement.OBJECT,
    source_hash: str = "",
) -> ProgramObject:
    """The object that chooses, with those of the levels as its parts, and the constants of all.

    ``programs``: those of the levels of ``choice``.  Raises ``BackendError``.
    """
    names = [prefix(name, program.target) for program in programs]
    blocks = weights_of(programs, placement)
    made = [
        part_object(own, program, block, name, source_hash)
        for own, program, block in zip(names, programs, blocks, strict=True)
    ]
    arena_nbytes = max(part.arena_nbytes for part in made)
    kernels = max((part.kernels for part in made), key=len)
    base, weights = programs[-1], blocks[-1]
    facts = Facts(name, source_hash, base, arena_nbytes, weights.nbytes, kernels)
    given = arguments(placement)
    lines = [
        *weights_text(name, base.target, weights, is_home=True),
        *choosing(name, names, choice, given),
        *facts.lines(),
    ]
    runs = [f"{name}_{suffix}" for suffix in given]
    public = [f"{name}_level", *runs, *(f"{run}_at" for run in runs)]
    code = object_file(base.target, ["\n".join(lines)], public)
    deepest = Stack.most(part.stack for part in made)
    return replace(
        made[-1],
        code=filled(code.code, weights),
        stack=sum(code.frames.values(), deepest + CALLS),
        arena_nbytes=arena_nbytes,
        kernels=kernels,
        parts={own: part.code for own, part in zip(names, made, strict=True)},
    )


def choosing(
    name: str, names: Sequence[str], choice: Choice, given: Mapping[str, str]
) -> Iterator[str]:
    """``NAME_level``, and the functions that run the code of that level, or of a given one."""
    yield choice.detection.helpers
    yield from level_function(f"{name}_level", choice)
    for suffix, own in given.items():
        yield from run_at(f"{name}_{suffix}_at", [f"{level}_{suffix}" for level in names], own)
        yield f"define i32 @{name}_{suffix}({own}) nounwind {{"
        yield f"  %level = call i32 @{name}_level()"
        yield f"  %result = call i32 @{name}_{suffix}_at(i32 %level, {own})"
        yield "  ret i32 %result"
        yield "}"


def run_at(name: str, runs: Sequence[str], given: str) -> Iterator[str]:
    """The function ``name``, which calls that of ``runs`` whose number is given; the last one for
    numbers that no level has."""
    kinds = ", ".join(argument.split()[0] for argument in given.split(","))
    yield from (f"declare i32 @{run}({kinds})" for run in runs)
    yield f"define i32 @{name}(i32 %level, {given}) nounwind {{"
    cases = (f"i32 {index}, label %level{index}" for index in range(len(runs)))
    yield f"  switch i32 %level, label %level{len(runs) - 1} [ {' '.join(cases)} ]"
    for index, run in enumerate(runs):
        yield f"level{index}:"
        yield f"  %result{index} = call i32 @{run}({given})"
        yield f"  ret i32 %result{index}"
    yield "}"

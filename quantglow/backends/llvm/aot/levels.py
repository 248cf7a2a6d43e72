"""One model for several levels of a processor: the code is chosen at every run, so that nothing is
kept between runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from quantglow.backends.llvm.aot.detection import detection_of
from quantglow.backends.llvm.aot.facts import Facts
from quantglow.backends.llvm.aot.objects import object_file
from quantglow.backends.llvm.aot.program_object import CALL_NBYTES, ProgramObject, program_object
from quantglow.backends.llvm.aot.weights import Placement, Weights
from quantglow.backends.llvm.emitted import EmittedProgram
from quantglow.backends.llvm.isa.target import Target

ARGUMENTS = "ptr %arena, ptr %inputs, ptr %outputs"
OBSERVED = f"{ARGUMENTS}, ptr %observer, ptr %user"


def prefix(name: str, target: Target) -> str:
    """The beginning of the symbols of a level."""
    return f"{name}_{target.name.replace('-', '_')}"


def levels_object(
    name: str,
    programs: Sequence[EmittedProgram],
    needs: Sequence[Sequence[str]],
    source_hash: str = "",
) -> ProgramObject:
    """The object that chooses, with those of the levels as its parts.

    ``programs``: the best level first; ``needs``: features of each.  Raises ``BackendError``.
    """
    names = [prefix(name, program.target) for program in programs]
    made = [
        program_object(own, program, Placement.OBJECT, source_hash)
        for own, program in zip(names, programs, strict=True)
    ]
    constants = tuple(c for program in programs for c in program.constants)
    slack_nbytes = sum(part.weights.slack_nbytes for part in made)
    weights = Weights(constants, Placement.OBJECT, slack_nbytes)
    arena_nbytes = max(part.arena_nbytes for part in made)
    kernels = max((part.kernels for part in made), key=len)
    base = programs[-1]
    facts = Facts(name, source_hash, base, arena_nbytes, weights.nbytes, kernels)
    text = "\n".join([*choosing(name, names, base.target, needs), *facts.lines()])
    public = [f"{name}_level", f"{name}_run", f"{name}_run_observed"]
    code = object_file(base.target, [text], public)
    deepest = max(part.stack_nbytes for part in made)
    return replace(
        made[-1],
        code=code.code,
        weights=weights,
        stack_nbytes=deepest + sum(code.frames.values()) + CALL_NBYTES,
        arena_nbytes=arena_nbytes,
        kernels=kernels,
        parts={own: part.code for own, part in zip(names, made, strict=True)},
    )


def choosing(
    name: str, names: Sequence[str], target: Target, needs: Sequence[Sequence[str]]
) -> Iterator[str]:
    """``NAME_level``, and the functions that call the code of that level."""
    yield detection_of(target).helpers
    yield from level_function(name, target, needs)
    for suffix, arguments in (("run", ARGUMENTS), ("run_observed", OBSERVED)):
        kinds = ", ".join("ptr" for _ in arguments.split(","))
        yield from (f"declare i32 @{own}_{suffix}({kinds})" for own in names)
        yield f"define i32 @{name}_{suffix}({arguments}) nounwind {{"
        yield f"  %level = call i32 @{name}_level()"
        cases = (f"i32 {index}, label %level{index}" for index in range(len(names)))
        yield f"  switch i32 %level, label %level{len(names) - 1} [ {' '.join(cases)} ]"
        for index, own in enumerate(names):
            yield f"level{index}:"
            yield f"  %result{index} = call i32 @{own}_{suffix}({arguments})"
            yield f"  ret i32 %result{index}"
        yield "}"


def level_function(name: str, target: Target, needs: Sequence[Sequence[str]]) -> Iterator[str]:
    """``int NAME_level(void)``: number of the first level whose features are all there."""
    detection = detection_of(target)
    yield f"define i32 @{name}_level() nounwind {{"
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

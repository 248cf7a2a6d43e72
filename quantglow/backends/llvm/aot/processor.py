"""The question whether the processor has the features that code needs, asked before its first
kernel: a run on another one ends with a result, not with an illegal instruction.

The functions that ask are compiled for the least processor of the family.  A byte notes that the
answer was yes: in a virtual machine, asking takes microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator

from quantglow.backends.llvm.isa.features import Choice, Requirement


def level_function(name: str, choice: Choice, attributes: str = "") -> Iterator[str]:
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


def asking(name: str, needed: Requirement, section: str) -> Iterator[str]:
    """``i1 NAME_suits()``: whether this processor has what a program needs."""
    yield needed.detection.helpers
    yield f"@{name}_noted = internal global i8 0{section}, align 1"
    choice = Choice(needed.detection, (needed.needs, ()))
    yield from level_function(f"{name}_lacks", choice, needed.attributes)
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


def guarded(
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

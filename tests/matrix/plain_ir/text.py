"""Pieces of functions in LLVM IR that several instruction sets share; each is called NAME."""

from __future__ import annotations

from collections.abc import Sequence

from quantglow.codegen.llvm.values import Type, vector


def shuffled(name: str, kind: str, value: str, order: Sequence[int]) -> str:
    mask = ", ".join(f"i32 {i}" for i in order)
    return (
        f"  {name} = shufflevector {kind} {value}, {kind} poison, <{len(order)} x i32> <{mask}>\n"
    )


def narrowed(lanes: int, element: Type, wide: Type, low: int, high: int) -> str:
    kind, result = vector(lanes, wide), vector(lanes, element)
    text = f"define internal {result} @NAME({kind} %x) nounwind {{\n"
    value = "%x"
    for name, predicate, bound in (("%a", "sgt", low), ("%b", "slt", high)):
        limit = f"splat ({wide} {bound})"
        text += f"  {name}c = icmp {predicate} {kind} {value}, {limit}\n"
        text += f"  {name} = select <{lanes} x i1> {name}c, {kind} {value}, {kind} {limit}\n"
        value = name
    return text + f"  %r = trunc {kind} %b to {result}\n  ret {result} %r\n}}\n"

"""Importer of Einsum: operands are contracted from the left, two at a time, by MatMul or Mul."""

from __future__ import annotations

import math
import re
import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from quantglow.frontend.nodes.context import Call, importer
from quantglow.graph.node import Node
from quantglow.ops import Expand, MatMul, Mul, ReduceSum, Reshape, Slice, Transpose

BROADCAST = string.digits
"""Labels of the axes that an ellipsis stands for, the last axis last."""


@dataclass(frozen=True)
class Labelled:
    """A value with one letter for each axis."""

    node: Node
    labels: str

    def size(self, label: str) -> int:
        return self.node.type.shape[self.labels.index(label)]


@importer("Einsum")
def einsum(call: Call) -> Node:
    equation = call.text("equation", "").replace(" ", "")
    terms, output = parsed(equation, [node.type.rank for node in call.nodes()])
    writer = Contraction(call)
    values = [
        writer.diagonal(Labelled(node, term))
        for node, term in zip(call.nodes(), terms, strict=True)
    ]
    sizes: dict[str, int] = {}
    for value in values:
        for label in value.labels:
            sizes[label] = max(sizes.get(label, 1), value.size(label))
    result, *rest = (writer.widened(value, sizes) for value in values)
    for position, value in enumerate(rest, 1):
        later = set(output).union(*(v.labels for v in rest[position:]))
        result = writer.product(writer.summed(result, later | set(value.labels)), value, later)
    result = writer.summed(result, set(output))
    return writer.ordered(result, output, call.result).node


def parsed(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Labels of each operand and of the result, an ellipsis spelled out.  Raises ``ValueError``."""
    left, _, right = equation.partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks) or not re.fullmatch(r"[A-Za-z.,]*", left + right):
        raise ValueError(f"the equation {equation!r} does not fit {len(ranks)} operands")
    widest = 0
    for i, (term, rank) in enumerate(zip(terms, ranks, strict=True)):
        missing = rank - len(term.replace("...", ""))
        if missing < 0 or (missing and "..." not in term) or missing > len(BROADCAST):
            raise ValueError(f"{term!r} does not name the {rank} axes of operand {i}")
        widest = max(widest, missing)
        terms[i] = term.replace("...", BROADCAST[len(BROADCAST) - missing :])
    every = BROADCAST[len(BROADCAST) - widest :]
    if "->" not in equation:
        letters = "".join(terms)
        right = every + "".join(sorted(c for c in set(letters) - {*every} if letters.count(c) == 1))
    output = right.replace("...", every)
    if len(set(output)) != len(output) or not set(output) <= set("".join(terms)):
        raise ValueError(f"the result of {equation!r} repeats a label, or has one of its own")
    return terms, output


@dataclass(frozen=True)
class Contraction:
    """Makes the nodes of one Einsum."""

    call: Call

    def diagonal(self, value: Labelled) -> Labelled:
        """Each repeated label once: of its two axes, joined, every (n + 1)-th element."""
        for label in dict.fromkeys(value.labels):
            while value.labels.count(label) > 1:
                kept = value.labels.replace(label, "", 2)
                n = value.size(label)
                first = value.labels.index(label)
                pair = [first, value.labels.index(label, first + 1)]
                others = [i for i in range(len(value.labels)) if i not in pair]
                moved = self.moved(value.node, [*others, *pair])
                shape = moved.type.shape[:-2]
                flat = self.reshaped(moved, (*shape, n * n))
                ends = (*(0 for _ in shape), 0)
                steps = (*(1 for _ in shape), n + 1)
                name = self.call.derived("diagonal")
                node = Slice(name=name, x=flat, starts=ends, sizes=(*shape, n), steps=steps)
                value = Labelled(node, kept + label)
        return value

    def widened(self, value: Labelled, sizes: dict[str, int]) -> Labelled:
        """Axes of 1 broadcast to what other operands have."""
        shape = tuple(sizes[label] for label in value.labels)
        if shape == value.node.type.shape:
            return value
        wide = Expand(name=self.call.derived("wide"), x=value.node, shape=shape)
        return Labelled(wide, value.labels)

    def summed(self, value: Labelled, needed: set[str]) -> Labelled:
        """Without the axes nobody needs."""
        axes = tuple(i for i, label in enumerate(value.labels) if label not in needed)
        if not axes:
            return value
        name = self.call.derived("sum")
        node = ReduceSum(name=name, x=value.node, axes=axes, keepdims=False)
        return Labelled(node, "".join(label for label in value.labels if label in needed))

    def product(self, x: Labelled, y: Labelled, later: set[str]) -> Labelled:
        """x * y, summed over the labels of both that are not needed later."""
        y = self.summed(y, later | set(x.labels))
        shared = [label for label in x.labels if label in y.labels]
        batch = "".join(label for label in shared if label in later)
        inner = "".join(label for label in shared if label not in later)
        rows = "".join(label for label in x.labels if label not in y.labels)
        columns = "".join(label for label in y.labels if label not in x.labels)
        each = [batch] if batch else []  # no axis before rows, which are then those of samples
        left = self.grouped(x, *each, rows, inner)
        right = self.grouped(y, *each, inner, columns)
        name = self.call.derived("product")
        made = MatMul(name=name, x=left, y=right) if inner else Mul(name=name, x=left, y=right)
        shape = (*(x.size(c) for c in batch + rows), *(y.size(c) for c in columns))
        return Labelled(self.reshaped(made, shape), batch + rows + columns)

    def grouped(self, value: Labelled, *groups: str) -> Node:
        """The axes in this order, each group joined."""
        ordered = self.ordered(value, "".join(groups))
        shape = tuple(math.prod(value.size(label) for label in group) for group in groups)
        return self.reshaped(ordered.node, shape)

    def ordered(self, value: Labelled, labels: str, name: str = "") -> Labelled:
        if value.labels == labels and not name:
            return value
        perm = tuple(value.labels.index(label) for label in labels)
        name = name or self.call.derived("moved")
        return Labelled(Transpose(name=name, x=value.node, perm=perm), labels)

    def moved(self, x: Node, perm: Iterable[int]) -> Node:
        return Transpose(name=self.call.derived("moved"), x=x, perm=tuple(perm))

    def reshaped(self, x: Node, shape: tuple[int, ...]) -> Node:
        if x.type.shape == shape:
            return x
        return Reshape(name=self.call.derived("as"), x=x, shape=shape)

"""The values that a Loop carries: those that change, those that never do, those of which nobody
reads the first one, and those that grow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from quantglow.frontend.nodes.context import Call
from quantglow.frontend.nodes.values import Value
from quantglow.frontend.operators.body_names import names_read, originals
from quantglow.frontend.operators.branches import reranked
from quantglow.frontend.operators.growing import Growing
from quantglow.graph.node import Constant, Node
from quantglow.graph.signature import Shape
from quantglow.ops.shape import Expand
from quantglow.symbolic.size import is_free
from quantglow.types import TensorType


@dataclass(frozen=True)
class Carried:
    """The carried values of a Loop by their numbers: all of them, those that stay what they were
    (``fixed``, each with its value), those whose first value the body does not read, and those to
    which it appends rows (``growing``)."""

    call: Call
    count: int
    fixed: dict[int, Value]
    unread: frozenset[int]
    growing: dict[int, Growing]

    @staticmethod
    def of(call: Call, growing: Sequence[Growing] = ()) -> Carried:
        body, given = call.attributes["body"], call.proto.input[2:]
        count = len(given)
        inner, after = body.input[2:], originals(body)
        fixed = {
            number: call.scope.values[name]
            for number, name in enumerate(given)
            if after[1 + number] == inner[number].name
        }
        read = {*names_read(body), *(output.name for output in body.output)}
        unread = frozenset(n for n in range(count) if inner[n].name not in read)
        return Carried(call, count, fixed, unread, {value.number: value for value in growing})

    @property
    def changing(self) -> list[int]:
        """The values that the loop hands from trip to trip: those that something reads."""
        outputs = self.call.proto.output
        used = {n for n, name in enumerate(outputs[: self.count]) if name in self.call.scope.used}
        stacked = {n for n, value in self.growing.items() if not value.kept}
        left_out = {*self.fixed, *(self.unread - used), *stacked}
        return [n for n in range(self.count) if n not in left_out]

    def first(self, number: int, shape: Shape) -> Node:
        """A changing value before the first trip; one of one element in this shape, if that has
        more dimensions."""
        grows = self.growing.get(number)
        if grows is not None:
            return grows.window(grows.first())
        return reranked(self.call, self.call.scope.tensor(self.call.proto.input[2 + number]), shape)

    def following(self, made: Sequence[Node]) -> list[Node]:
        """The changing values of the next trip, then the values that each trip stacks, with those
        that it appends last; given all outputs of the body but the condition."""
        windows = {n: value.window(made[n]) for n, value in self.growing.items() if value.kept}
        rows = [value.appended(made[n]) for n, value in self.growing.items()]
        changing = [windows.get(number, made[number]) for number in self.changing]
        return [*changing, *made[self.count :], *rows]

    def changing_outputs(self) -> list[str]:
        """The outputs of the ONNX node that are results of the loop, "" for those it does not have,
        and for values that grow."""
        names = [str(name) for name in self.call.proto.output]
        names += [""] * (len(self.call.attributes["body"].output) - 1 - len(names))
        changing = ("" if number in self.growing else names[number] for number in self.changing)
        return [*changing, *names[self.count :]]

    def growing_outputs(self) -> Iterator[tuple[str, Growing]]:
        """The values that grow, each with the name of its output, "" where there is none."""
        names = self.call.proto.output
        for number, value in self.growing.items():
            yield str(names[number]) if number < len(names) else "", value

    @property
    def unchanging(self) -> dict[int, Value]:
        """Values that the body reads in place of those that no trip hands to the next."""
        inner = self.call.attributes["body"].input[2:]
        rows = {n: x.nothing(inner[n].name) for n, x in self.growing.items() if not x.kept}
        return {**self.fixed, **rows}

    def results(self) -> Iterator[tuple[str, Value]]:
        """The outputs of the ONNX node that are fixed values."""
        for number, name in enumerate(self.call.proto.output[: self.count]):
            if number in self.fixed and name:
                yield str(name), self.fixed[number]


def zeros_of(call: Call, kind: TensorType) -> Node:
    """A first value for what the first trip replaces unread."""
    shape = tuple(1 if is_free(size) else size for size in kind.shape)
    zeros = Constant(name=call.derived("unread"), value=np.zeros(shape, kind.dtype.numpy))
    if shape == kind.shape:
        return zeros
    return Expand(name=call.derived("unread"), x=zeros, shape=kind.shape)

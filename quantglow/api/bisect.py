"""Finds the part of the compiler from which on results differ from the reference.

The stages are judged in the order in which a model passes them, each against the one before: the
import against onnxruntime, every pass over graphs by the interpreter, and the machine code by cuts
of the graph.  A cut computes the values of the first nodes that later ones read.  The first cut is
right and the last one wrong, so halving the distance finds a node whose values are wrong though its
operands are right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from quantglow.api.compile import compile
from quantglow.api.models.families import (
    first_of,
    import_at,
    open_family,
    open_source,
    with_steps,
)
from quantglow.api.options import THREADS, CompileOptions, ModelOptions
from quantglow.importer import as_onnx
from quantglow.importer.onnx import Source
from quantglow.interpreter import interpret
from quantglow.ir.graph.family import Family, LateResults
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input, Node
from quantglow.ir.graph.signature import declared_only, entering, leaving
from quantglow.ort.float_results import running
from quantglow.profiling.samples.feeds import Feeds, first_feeds
from quantglow.support import debug
from quantglow.support.arrays import Array
from quantglow.support.errors import CalibrationError
from quantglow.support.options import (
    NUMBER,
    Options,
    argument,
    option,
    same_option,
    takes_options,
)
from quantglow.support.processes.isolation import IsolationError
from quantglow.transforms.float import FLOAT_PASSES, optimize
from quantglow.transforms.lowering import LOWERING_PASSES, lower
from quantglow.transforms.partition import Backend
from quantglow.transforms.pass_manager import pass_name, watching
from quantglow.transforms.rewrite import single_passes

TOLERANCE = 1e-3
"""Difference of float results over their largest magnitude: above what other orders of summation
make of deep networks, and below what a wrong operator does."""

Part = tuple[str, str, str]
"""Stage, name and operator of a ``Bisection``."""


@dataclass(frozen=True)
class Bisection:
    """The first part of the compiler whose results differ.

    stage       "import", "pass", "kernel", or "" where nothing differs
    name        the pass, or the value that a kernel computes; "" for an import
    op          the operator of that value
    difference  largest difference of an output, over the largest magnitude of that output
    """

    stage: str = ""
    name: str = ""
    op: str = ""
    difference: float = 0.0

    def __str__(self) -> str:
        if not self.stage:
            return "import, passes and machine code give the results of the reference"
        size = f"the results differ by {self.difference:.2g} of their largest magnitude"
        where = {
            "import": "the import: the graph, interpreted, is not what onnxruntime computes",
            "pass": f"the pass {self.name!r}",
            "kernel": f"the machine code of {self.name!r} ({self.op}), whose operands are right",
        }
        return f"first different from {where[self.stage]}; {size}"


@dataclass(frozen=True, kw_only=True, repr=False)
class BisectArguments(Options):
    """The arguments of ``bisect``."""

    model: Any = field(
        kw_only=False,
        metadata=argument(
            "the path, the bytes or the ``onnx.ModelProto`` of a model, which is compared with "
            "onnxruntime first, or a graph, float or int8"
        ),
    )
    data: Any = field(kw_only=False, metadata=argument("samples, of which the first is used"))
    target: str = same_option(CompileOptions, "target")
    num_threads: int | None = option(
        1, THREADS.or_none(), "threads of the machine code that is judged"
    )
    backends: Sequence[Backend] = same_option(CompileOptions, "backends")
    tolerance: float = option(
        TOLERANCE,
        NUMBER,
        "difference of float results, over their largest magnitude, that is no error; integers "
        "have to be equal",
    )
    before: Any = same_option(ModelOptions, "before")
    after: Any = same_option(ModelOptions, "after")


@takes_options(BisectArguments)
def bisect(options: BisectArguments) -> Bisection:
    """Find where compiled results begin to differ from the reference, on the first sample.

    Raises ``CalibrationError`` for data that does not fit, and the errors of ``compile``.
    """
    model, data = as_onnx(options.model, options.data)
    model = with_steps(model, options.before, options.after)
    source = None if isinstance(model, Graph) else open_source(model)
    signature = model.signature if source is None else source.signature
    feeds, _ = first_feeds(data, signature)
    if feeds is None:
        raise CalibrationError("data holds no samples. Remedy: pass at least one.")
    feeds = declared_only(signature.inputs, feeds)
    entering_feeds = entering(signature.inputs, feeds)
    judge = _Judge(entering_feeds, options.tolerance)
    if source is None:
        family, start = open_family(model), model
    else:
        family, start = _open_at(source, entering_feeds)
    if source is not None and (bisection := judge.imported(source, start, feeds)) is not None:
        return bisection
    if (bisection := judge.passes(start)) is not None:
        return bisection

    def compiled(graph: Graph) -> list[Array]:
        model = compile(graph, options.target, options.num_threads, backends=options.backends)
        return model.run(None, _leaving_inputs(graph, entering_feeds))

    return judge.kernels(family.fitting(feeds), compiled) or Bisection()


def _open_at(source: Source, feeds: Feeds) -> tuple[Family, Graph]:
    """The graphs of a model, and that of some feeds as it is imported."""

    def attempt(late_results: LateResults) -> tuple[Family, Graph]:
        family = open_family(source, late_results=late_results)
        return family, import_at(source, family, family.case_for(feeds))

    return first_of(attempt)


def _leaving_inputs(graph: Graph, feeds: Feeds) -> Feeds:
    """Feeds in the types that a graph declares."""
    arrays = leaving(graph.signature.inputs, [feeds[i.name] for i in graph.inputs])
    return dict(zip((i.name for i in graph.inputs), arrays, strict=True))


@dataclass(frozen=True)
class _Judge:
    """Compares results on one sample."""

    feeds: Feeds
    tolerance: float

    def imported(
        self, source: Source, graph: Graph, feeds: Mapping[str, Array]
    ) -> Bisection | None:
        """The import, if onnxruntime has other results; None also where it has none."""
        with suppress(IsolationError), running(source.serialize(), [feeds]) as answer:
            results = leaving(graph.signature.outputs, interpret(graph, self.feeds))
            return self.verdict(answer()[0][0], results, ("import", "", ""))
        return None

    def passes(self, graph: Graph) -> Bisection | None:
        """The first pass of ``optimize`` and ``lower`` after which results differ."""
        bisections: list[Bisection] = []

        def judged(name: str, before: Any, after: Any) -> None:
            if not bisections and isinstance(after, Graph) and _is_whole(after, graph):
                expected, now = (interpret(g, self.feeds) for g in (before, after))
                if self.verdict(expected, now) is not None:
                    bisections.append(self.single(name, before, expected, now))

        with watching(judged):
            lower(optimize(graph))
        return bisections[0] if bisections else None

    def single(
        self, name: str, before: Graph, expected: Sequence[Array], now: Sequence[Array]
    ) -> Bisection:
        """The pass ``name``, or that among the passes that it consists of."""
        groups = [step for step in (*FLOAT_PASSES, *LOWERING_PASSES) if pass_name(step) == name]
        graph = before
        for step in single_passes(groups):
            graph = step(graph)
            part = ("pass", pass_name(step), "")
            bisection = self.verdict(expected, interpret(graph, self.feeds), part)
            if bisection is not None:
                return bisection
        return Bisection("pass", name, difference=max(map(difference, expected, now)))

    def kernels(self, graph: Graph, compiled: Callable[[Graph], list[Array]]) -> Bisection | None:
        """The first value that machine code computes wrongly."""
        nodes = [n for n in graph.nodes if not isinstance(n, Input | Constant)]

        def verdict(count: int) -> Bisection | None:
            cut = cut_after(graph, nodes[:count])
            last = nodes[count - 1]
            part = ("kernel", last.name, last.op)
            return self.verdict(interpret(cut, self.feeds), compiled(cut), part)

        right, wrong, bisection = 0, len(nodes), verdict(len(nodes)) if nodes else None
        while bisection is not None and wrong - right > 1:
            middle = (right + wrong) // 2
            debug.log(1, f"bisect: {right} nodes are right, {wrong} are not; trying {middle}")
            if (here := verdict(middle)) is None:
                right = middle
            else:
                wrong, bisection = middle, here
        return bisection

    def verdict(
        self, expected: Sequence[Array], results: Sequence[Array], part: Part = ("", "", "")
    ) -> Bisection | None:
        """The part, if anything differs."""
        worst = max(map(difference, expected, results), default=0.0)
        return Bisection(*part, worst) if worst > self.tolerance else None


def _is_whole(graph: Graph, model: Graph) -> bool:
    """Whether a graph is the model's, and no body of it."""
    names = [name for name, _ in model.outputs]
    return [name for name, _ in graph.outputs] == names and len(graph.inputs) == len(model.inputs)


def cut_after(graph: Graph, nodes: Sequence[Node]) -> Graph:
    """The graph of the values of ``nodes`` that other nodes read, or that are outputs."""
    inside = set(nodes)
    read = [node for node in graph.nodes if node not in inside]
    ends = {operand for node in read for operand in node.operands if operand in inside}
    ends |= {node for _, node in graph.outputs if node in inside}
    return Graph(graph.inputs, tuple((node.name, node) for node in nodes if node in ends))


def difference(expected: Array, results: Array) -> float:
    """The largest difference over the largest finite magnitude; infinite where integers, shapes or
    special numbers differ."""
    a, b = np.asarray(expected), np.asarray(results)
    if a.shape != b.shape:
        return np.inf
    if a.dtype.kind != "f":
        return 0.0 if np.array_equal(a, b) else np.inf
    finite = np.isfinite(a)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return np.inf
    apart = np.abs(a[finite].astype(np.float64) - b[finite])
    return float(apart.max(initial=0.0) / max(np.abs(a[finite]).max(initial=0.0), 1e-30))

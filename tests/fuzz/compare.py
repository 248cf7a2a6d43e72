"""Conditions on a case: float as onnxruntime, int8 the same integers everywhere.

The results also stay the same with other float types at the border (see ``borders``), and beside
outputs that are not compiled (see ``foreign_ends``).  Scopes hold (see ``scopes``).

Float results may differ by rounding.  The effect of rounding on a graph is measured: onnxruntime
runs it once more on inputs moved by one part in a million, and ten times the change is allowed,
besides a ten-thousandth of the largest result.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import inliner

import quantglow as qg
from quantglow.api.models.families import is_quantized
from quantglow.codegen.llvm import targets
from quantglow.interpreter import interpret
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.kinds import Trait
from quantglow.ir.graph.node import Constant, Input, Node
from quantglow.ir.ops.shape import Concat, Expand, Pad, Reshape, Slice, Transpose
from quantglow.ir.ops.unary import Relu
from quantglow.ort.session import failures
from quantglow.runtime.compiled import CompiledModel
from tests.fuzz.borders import border_difference
from tests.fuzz.foreign_ends import foreign_difference
from tests.fuzz.free_sizes import free_difference
from tests.fuzz.integers import first_difference
from tests.fuzz.scopes import scope_difference
from tests.fuzz.unspecified import OPEN, ROUNDED, OpenResults, unspecified_outputs
from tests.generators.onnx_models.models import Case, Feeds
from tests.support.harsh import harsh

Arrays = list[NDArray[np.generic]]
TOLERANCE = 1e-4
REFUSED = "refused by onnxruntime"
NUDGE = 1e-6
FLOOR = 1e-6
"""Minimum tolerance of float differences: values near 1 that cancel leave a few steps of
float32."""
LEVELS = ("native", *filter(targets.runs_here, targets.LEVELS))
"""Every target of this machine."""
THREADS = (1, 2, 3)
EXACT_FLOAT = (Concat, Constant, Expand, Input, Pad, Relu, Reshape, Slice, Transpose)
"""Float operators whose results are the same in NumPy and compiled, bit for bit."""


@dataclass(frozen=True)
class Difference:
    """A difference in words; ``kind`` is kept while a case is shrunk."""

    kind: str
    detail: str


Differences = dict[int, Difference]
"""Differences by the position of the output."""


@dataclass(frozen=True)
class Setting:
    """Target and number of threads that a case is compiled for."""

    level: str = "native"
    threads: int = 1

    @staticmethod
    def of(seed: int) -> Setting:
        """Each level with 1, 2 and 3 threads, in turn."""
        settings = [Setting(level, threads) for threads in THREADS for level in LEVELS]
        return settings[seed % len(settings)]

    def compile(self, model: onnx.ModelProto | Graph) -> CompiledModel:
        return qg.compile(model, self.level, self.threads)

    def quantize(self, model: onnx.ModelProto, samples: Sequence[Feeds]) -> CompiledModel:
        """The int8 model by default."""
        return qg.quantize_and_compile(
            model,
            list(samples),
            target=self.level,
            num_threads=self.threads,
            verify=False,
            progress=False,
        )

    def __str__(self) -> str:
        return f"target {self.level}, {self.threads} threads"


def check(case: Case, setting: Setting) -> Difference | None:
    """The first difference of a case, or None.

    ``REFUSED`` means that onnxruntime does not run it, so that it was not checked. Compiled
    programs run under ``harsh`` conditions.
    """
    try:
        expected = reference(case.model, case.samples)
    except failures() as error:
        return Difference(REFUSED, str(error)[:300])
    try:
        with harsh():
            actual = float_difference(case, expected, setting) or int8_difference(case, setting)
            if actual is None and (detail := border_difference(case, setting.compile)):
                return Difference("border", detail)
            if actual is None and (
                detail := free_difference(
                    case,
                    setting.compile,
                    lambda m: setting.quantize(m, case.samples),
                    with_exact_outputs,
                )
            ):
                return Difference("free sizes", detail)
            if actual is None and (
                detail := foreign_difference(case, setting.level, setting.threads)
            ):
                return Difference("foreign ends", detail)
            if actual is None and (detail := scope_difference(case)):
                return Difference("scopes", detail)
            return actual
    except Exception as error:  # noqa: BLE001 - whatever is raised on a valid model is the finding
        return raised(error)


def raised(error: Exception) -> Difference:
    """The error, and the line that raised it."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{Path(last.filename).name}:{last.lineno}"
    return Difference(f"raises {type(error).__name__}", f"{str(error)[:300]} ({place})")


def session(model: onnx.ModelProto) -> ort.InferenceSession:
    """onnxruntime without its optimizer, which crashes on some branches and may round
    differently.
    """
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    data = for_onnxruntime(model).SerializeToString()
    return ort.InferenceSession(data, options, ["CPUExecutionProvider"])


NEWEST_READ = 26
"""The last opset that onnxruntime 1.31 reads."""
SPELLED_OUT = [("", "SwiGLU"), ("", "CausalConvWithState"), ("", "Swish")]
"""Operators that it lacks."""
LOOPS = ("Loop", "Scan")
"""Operators of which it leaves out no result."""


def for_onnxruntime(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model in an opset that onnxruntime reads, without operators that it lacks.

    Operators of both opsets take more types in the newer one and mean the same.
    """
    known = inliner.inline_selected_functions(model, SPELLED_OUT, inline_schema_functions=True)
    known.opset_import[0].version = min(model.opset_import[0].version, NEWEST_READ)
    for number, node in enumerate(known.graph.node):
        if node.op_type in LOOPS:
            node.output[:] = [
                name or f"left out {number} {i}" for i, name in enumerate(node.output)
            ]
    return known


def reference(model: onnx.ModelProto, samples: tuple[Feeds, ...]) -> tuple[Arrays, Arrays]:
    """onnxruntime's outputs on the first sample, and the possible effect of rounding on each."""
    runner = session(model)
    plain = runner.run(None, samples[0])
    moved = [runner.run(None, nudged(samples[0], sign)) for sign in (1, -1)]
    spans = [
        np.maximum(*(apart(p, m) for m in moves)) for p, *moves in zip(plain, *moved, strict=True)
    ]
    return plain, spans


def nudged(feeds: Feeds, sign: int) -> Feeds:
    rng = np.random.default_rng(abs(sign) + 7)

    def moved(array: NDArray[np.generic]) -> NDArray[np.generic]:
        if array.dtype != np.float32:
            return array
        step = sign * NUDGE * rng.choice([-1, 1], array.shape)
        return (array * (1 + step)).astype(np.float32)

    return {name: moved(array) for name, array in feeds.items()}


def apart(a: NDArray[np.generic], b: NDArray[np.generic]) -> NDArray[np.float64]:
    """|a - b| as float64, 0 where both are the same infinity or NaN."""
    x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
    with np.errstate(invalid="ignore"):
        same = (x == y) | (np.isnan(x) & np.isnan(y))
        return np.where(same, 0.0, np.nan_to_num(np.abs(x - y), nan=np.inf))


def float_difference(
    case: Case, expected: tuple[Arrays, Arrays], setting: Setting
) -> Difference | None:
    """Interpreter and compiled program against onnxruntime; for results that ONNX leaves open, the
    compiled program against the interpreter.
    """
    graph, feeds = qg.import_model(case.model), case.samples[0]
    plain, spans = expected
    interpreted = qg.interpret(graph, feeds)
    compiled = setting.compile(case.model).run(None, feeds)
    actual = differing("interpreter", plain, spans, interpreted)
    actual = differing("compiled", plain, spans, compiled) | actual
    if actual:
        names = [output.name for output in case.model.graph.output]

        def specified(differences: Differences, open_results: OpenResults) -> Differences:
            left_out = unspecified_outputs(case.model, feeds, onnxruntime_outputs, open_results)
            return {
                i: d
                for i, d in differences.items()
                if names[i] not in left_out or d.kind.endswith("type")
            }

        ours = differing("compiled", interpreted, spans, compiled)
        actual = specified(actual, OPEN) or specified(ours, ROUNDED)
    return next(iter(actual.values()), None)


def onnxruntime_outputs(model: onnx.ModelProto, feeds: Feeds) -> Arrays:
    """All outputs of a model."""
    return list(session(model).run(None, feeds))


def differing(kind: str, expected: Arrays, spans: Arrays, actual: Arrays) -> Differences:
    """Outputs of another type, and outputs that differ by more than rounding explains, by
    position.
    """
    differences = {}
    for position, (w, span, f) in enumerate(zip(expected, spans, actual, strict=True)):
        if (f.dtype, f.shape) != (w.dtype, w.shape):
            text = f"{f.dtype}{f.shape} for {w.dtype}{w.shape}"
            differences[position] = Difference(f"{kind} type", text)
        elif detail := too_far(w, f, span):
            differences[position] = Difference(f"{kind} float", f"output {position}: {detail}")
    return differences


def too_far(
    expected: NDArray[np.generic], actual: NDArray[np.generic], span: NDArray[np.float64]
) -> str:
    """The difference of two results beyond rounding in words, or an empty text."""
    finite = np.abs(np.asarray(expected, np.float64)[np.isfinite(np.asarray(expected, np.float64))])
    exact = expected.dtype != np.float32
    base = 0.0 if exact else TOLERANCE * finite.max(initial=0.0) + FLOOR
    bad = apart(expected, actual) > base + 10 * span
    # If rounding turns an index or a condition, its neighbours follow.
    if not bad.any() or (exact and span.any()):
        return ""
    at = tuple(int(i) for i in np.argwhere(bad)[0])
    return f"{actual[at]} for {expected[at]} at {at}, {int(bad.sum())} of {bad.size} values"


def int8_difference(case: Case, setting: Setting) -> Difference | None:
    """The compiled int8 program against the interpreter, bit for bit."""
    try:
        int8 = with_exact_outputs(quantized(case))
    except qg.CalibrationError as error:
        return None if computes_no_numbers(case) else raised(error)
    program = setting.compile(int8)
    for feeds in (*case.samples, far(case.samples[0])):
        expected, actual = qg.interpret(int8, feeds), program.run(None, feeds)
        if detail := first_difference([name for name, _ in int8.outputs], expected, actual):
            return Difference("int8", detail)
    return None


def explains(operand: NDArray[np.generic], value: NDArray[np.generic]) -> bool:
    """Whether infinities of a result may be those of an operand: elementwise, at their places."""
    return operand.shape != value.shape or not (np.isinf(value) & np.isfinite(operand)).any()


def computes_no_numbers(case: Case) -> bool:
    """Whether calibration refuses the values: infinities of finite operands, or NaN that is neither
    moved nor in a Constant or Pad.
    """
    graph = qg.import_model(case.model)
    infinite: dict[Node, NDArray[np.generic]] = {}
    absent: set[Node] = set()
    actual = False

    def see(node: Node, value: NDArray[np.generic]) -> None:
        nonlocal actual
        if not node.type.dtype.is_float:
            return
        brings = isinstance(node, Constant) or (
            isinstance(node, Pad) and not np.isfinite(node.value)
        )
        if np.isinf(value).any():
            inputs = [infinite[operand] for operand in node.operands if operand in infinite]
            actual = actual or not (brings or any(explains(array, value) for array in inputs))
            infinite[node] = value
        if np.isnan(value).any():
            absent.add(node)
            moved = node.has(Trait.MOVES) and absent.intersection(node.operands)
            actual = actual or not (brings or moved)

    for feeds in case.samples:
        with np.errstate(all="ignore"):
            interpret(graph, feeds, [see])
    return actual


FAR = 64
"""Factor of a sample beyond all ranges, which takes other branches."""
RECOVERED = 0.5
"""Share of cases with equalization and recovery, which need samples."""


def far(feeds: Feeds) -> Feeds:
    """Feeds that calibration did not use."""
    return {n: a * np.float32(FAR) if a.dtype == np.float32 else a for n, a in feeds.items()}


def quantized(case: Case) -> Graph:
    graph, samples = qg.import_model(case.model), list(case.samples)
    if is_quantized(graph):
        return graph
    first = next(iter(samples[0].values()))
    recovered = np.random.default_rng(first.size).random() < RECOVERED
    profile = qg.profile(graph, samples, progress=False)
    return qg.quantize(graph, profile, data=samples if recovered else None)


def with_exact_outputs(graph: Graph) -> Graph:
    """The outputs, and the last integer values before any inexact float operator."""
    exact: dict[Node, bool] = {}
    for node in graph.nodes:
        known = isinstance(node, EXACT_FLOAT) or node.type.quant is not None
        exact[node] = known and all(exact[operand] for operand in node.operands)
    compute = [n for n in graph.compute_nodes() if exact[n] and n.type.quant is not None]
    ends = [n for n in compute if not any(user in compute for user in graph.users[n])]
    outputs = [(name, node) for name, node in graph.outputs if exact[node]]
    outputs += [(f"inner {node.name}", node) for node in ends]
    return Graph(graph.inputs, tuple(outputs), graph.source_hash)

"""Exported models of drawn cases: onnxruntime runs them with our results, or a typed error has a
remedy that works.

One form of each case is exported: float or int8, as it is, with free dimensions, or with outputs
that are not compiled, half of these with opaque results.  Float results are ours but for rounding.
int8 results are a step apart where a sum lies on a tie, and so are later ones: where they are
further apart, each operator by itself must be within a step of the interpreter's.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

import quantglow as qg
from quantglow.ir.graph.graph import Graph
from quantglow.ir.ops.external import External
from quantglow.ort.session import failures
from quantglow.runtime.exports.free_graphs import REMEDY
from quantglow.support.arrays import Array
from tests.fuzz.compare import (
    REFUSED,
    Difference,
    Setting,
    for_onnxruntime,
    onnxruntime_outputs,
    reference,
    too_far,
)
from tests.fuzz.foreign_ends import with_foreign_ends
from tests.fuzz.sized_ends import with_sized_ends
from tests.fuzz.unspecified import OPEN, unspecified_outputs
from tests.generators.onnx_models.models import Case, Feeds
from tests.support.free_dimensions import RESIZES, freed, resized
from tests.support.opaque_results import opaque_results
from tools.qdq_agreement import local_agreement, total

FOREIGN = "foreign ends"
FORMS = ("fixed", "free", "free", FOREIGN)
SIZED_SHARE = 0.6
"""Share of models with free dimensions that get outputs which depend on sizes."""
PRODUCER = "quantglow"
NEAR, SHARE = 0.02, 0.9
"""Difference of int8 results as a share of the largest, and the share of them that is as near."""


def check(case: Case, setting: Setting, seed: int) -> Difference | None:
    """The first difference of an exported case, or None."""
    try:
        spans = reference(case.model, case.samples)[1]
    except failures() as error:
        return Difference(REFUSED, str(error)[:300])
    open_ends = unspecified_outputs(case.model, case.samples[0], onnxruntime_outputs, OPEN)
    if open_ends:
        return None  # results that ONNX leaves open differ between runtimes
    rng = np.random.default_rng(seed)
    form, is_int8 = FORMS[int(rng.integers(len(FORMS)))], bool(rng.random() < 0.5)
    model = formed(case.model, form, rng)
    if model is None or (is_int8 and not is_finite(case.model)):
        return None
    is_opaque = form == FOREIGN and bool(rng.random() < 0.5)
    with (
        opaque_results() if is_opaque else nullcontext(),
        tempfile.TemporaryDirectory() as folder,
    ):
        try:
            compiled = setting.quantize(model, case.samples) if is_int8 else setting.compile(model)
        except qg.QuantglowError:
            return None  # the other fuzzer asks whether it may be refused
        label = f"{'opaque ' * is_opaque}{form} {'int8' if is_int8 else 'float'}"
        return exported_difference(model, compiled, case, label, spans, Path(folder) / "m.onnx")


def is_finite(model: onnx.ModelProto) -> bool:
    """Whether all constants are numbers: codes of others are anything."""
    arrays = map(onnx.numpy_helper.to_array, model.graph.initializer)
    return all(np.isfinite(array).all() for array in arrays if array.dtype.kind == "f")


def formed(model: onnx.ModelProto, form: str, rng: np.random.Generator) -> onnx.ModelProto | None:
    """The model in a form; None where it has none."""
    if form == "free":
        are_shared, is_sized = bool(rng.random() < 0.5), bool(rng.random() < SIZED_SHARE)
        return freed(with_sized_ends(model, rng) if is_sized else model, are_shared)
    names = [end.name for end in model.graph.output]
    if form == FOREIGN:
        return with_foreign_ends(model, rng) if len(set(names)) == len(names) else None
    return model


def exported_difference(
    model: onnx.ModelProto, compiled: Any, case: Case, label: str, spans: list[Array], path: Path
) -> Difference | None:
    """The difference of the exported model from a compiled one."""
    feeds = fed(compiled, case.samples[0])
    try:
        results = [compiled.run(None, feeds)]
    except qg.QuantglowError:
        return None
    shapes = None
    try:
        compiled.export_onnx(path)
    except qg.QuantglowError as error:
        if "Remedy: " not in str(error):
            return Difference(f"{label} remedy", str(error)[:300])
        if REMEDY not in str(error):
            return Difference(f"{label} refused", str(error)[:300])
        if label.startswith("free") and (other := served_elsewhere(model, compiled, feeds)):
            return Difference(f"{label} fixed", f"{other} run, too: {error}"[:300])
        shapes = {name: array.shape for name, array in feeds.items()}
        compiled.export_onnx(path, input_shapes=shapes)
    session = opened(path)
    tried = [feeds]
    if label.startswith("free") and shapes is None:
        tried += [fed(compiled, {n: resized(a, r) for n, a in feeds.items()}) for r in RESIZES[1:]]
    for number, values in enumerate(tried):
        if number:
            try:
                results.append(compiled.run(None, values))
            except qg.QuantglowError:
                results.append([])
                continue
        detail = compared(session, values, results[number], spans if "float" in label else None)
        if detail and "int8" in label and is_exact(compiled, values):
            continue
        if detail:
            sizes = {name: array.shape for name, array in values.items()}
            return Difference(label, f"{sizes}: {detail}")
    return None


def served_elsewhere(
    model: onnx.ModelProto, compiled: Any, feeds: Feeds
) -> dict[str, tuple[int, ...]]:
    """Other shapes that a model takes, all of whose dimensions have another size but those of 1;
    none where it takes no such, or where values decide.

    Sizes do not count that ONNX refuses, if only in a branch that is not taken, or that onnxruntime
    alone takes.
    """
    programs = getattr(compiled, "specialisations", None)
    if getattr(programs, "deciding", ()) or all(a.size == 1 for a in feeds.values()):
        return {}
    is_inferred = takes_sizes(model, {name: array.shape for name, array in feeds.items()})
    for resize in RESIZES[1:]:
        values = {name: resized(array, resize) for name, array in feeds.items()}
        shapes = {name: array.shape for name, array in values.items()}
        if is_inferred and not takes_sizes(model, shapes):
            continue
        with suppress(qg.QuantglowError):
            graph = None if programs is None else programs.graph_for(shapes)
            if graph and any(isinstance(node, External) for node in graph.every_node()):
                continue
            compiled.run(None, values)
            return shapes
    return {}


def takes_sizes(model: onnx.ModelProto, shapes: Mapping[str, Sequence[int]]) -> bool:
    """Whether ONNX infers the types of a model at some shapes of its inputs."""
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    for end in fixed.graph.input:
        for dim, size in zip(
            end.type.tensor_type.shape.dim, shapes.get(end.name, ()), strict=False
        ):
            dim.dim_value = size
    try:
        onnx.shape_inference.infer_shapes(fixed, check_type=True, strict_mode=True, data_prop=True)
    except onnx.shape_inference.InferenceError:
        return False
    return True


def fed(compiled: Any, sample: Feeds) -> Feeds:
    """The values of the inputs that a model has."""
    names = [info.name for info in compiled.get_inputs()]
    return {name: sample[name] for name in names}


def opened(path: Path) -> ort.InferenceSession:
    """onnxruntime with exact sums.  The original is written where nothing can be compiled, and it
    may have results without a name, which onnxruntime does not load.
    """
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.x64quantprecision", "1")
    model = onnx.load(path)
    if model.producer_name != PRODUCER:
        model = for_onnxruntime(model)
    return ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])


def compared(
    session: ort.InferenceSession, feeds: Feeds, expected: list[Any], spans: list[Array] | None
) -> str:
    """The difference of results in words, or an empty text."""
    read = {info.name for info in session.get_inputs()}
    results = session.run(None, {name: array for name, array in feeds.items() if name in read})
    for position, (one, other) in enumerate(zip(results, expected, strict=True)):
        if not isinstance(other, np.ndarray) or other.dtype.kind not in "fiub":
            if spans is not None and not is_alike(one, other):
                return f"output {position}: {one!r:.80} for {other!r:.80}"
            continue
        if (one.shape, one.dtype) != (other.shape, other.dtype):
            text = f"{one.dtype}{one.shape} for {other.dtype}{other.shape}"
            return f"output {position}: {text}"
        if spans is None:
            detail = far_apart(one, other)
        else:
            span = spans[position] if position < len(spans) else np.zeros(1)
            span = span if span.shape == other.shape else np.full(other.shape, span.max(initial=0))
            detail = too_far(other, one, span)
        if detail:
            return f"output {position}: {detail}"
    return ""


def is_alike(actual: Any, expected: Any) -> bool:
    """Whether strings are equal, or numbers of maps nearly so."""
    if isinstance(expected, np.ndarray):
        return np.array_equal(actual, expected)
    pairs = zip(actual, expected, strict=True)
    return all(
        one.keys() == other.keys()
        and np.allclose([*one.values()], [*other.values()], atol=1e-3, equal_nan=True)
        for one, other in pairs
    )


def far_apart(actual: Array, expected: Array) -> str:
    """The difference of int8 results in words, or an empty text."""
    one, other = (np.asarray(array, np.float64) for array in (actual, expected))
    with np.errstate(invalid="ignore"):
        near = np.abs(one - other) <= NEAR * np.abs(other[np.isfinite(other)]).max(initial=0) + 1e-6
        near |= (one == other) | (np.isnan(one) & np.isnan(other))
    if not near.size or near.mean() >= SHARE:
        return ""
    return f"{int((~near).sum())} of {near.size} values differ"


def is_exact(compiled: Any, feeds: Feeds) -> bool:
    """Whether each operator of a compiled model is within a step of the interpreter."""
    graph: Graph = compiled.specialisations.at(feeds).graph
    return total(local_agreement(graph, [feeds])).steps <= 1

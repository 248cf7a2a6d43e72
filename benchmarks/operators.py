"""The operators of ONNX: which are compiled in float, in int8, and which onnxruntime computes.

Found by trying: ONNX's own node tests (``onnx.backend.test``) are imported, operands that must be
known (weights, axes, shapes) as initializers.  Element types that the graph does not hold (float64
beside float32, uint32, strings, …) are left out.
"""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.conformance import cases
from quantglow import passes
from quantglow.driver import models, stages
from quantglow.errors import QuantglowError, UnsupportedOpError
from quantglow.frontend.context import IMPORTERS
from quantglow.graph.graph import Graph
from quantglow.quantization.refusals import refusal

README = Path(__file__).resolve().parents[1] / "README.md"
BEGIN, END = "<!-- operators: make operators -->\n", "<!-- end of operators -->\n"
HELD = "bool int8 uint8 int16 int32 int64 float32 float16 bfloat16"
WIDTH = 100


@dataclass(frozen=True)
class Support:
    """What becomes of an operator: ``floats`` and ``int8`` are "yes", "some" forms, or "-"."""

    floats: str
    int8: str

    @property
    def delegated(self) -> str:
        """Whether onnxruntime computes what is left."""
        return {"yes": "-", "some": "the rest", "-": "yes"}[self.floats]


@cache
def supports() -> dict[str, Support]:
    """Every standard operator with a node test."""
    found: dict[str, list[Support]] = {}
    for case in cases():
        if (op_type := tested_operator(case)) is not None:
            found.setdefault(op_type, []).append(tried(case))
    return {op_type: joined(op_type, forms) for op_type, forms in sorted(found.items())}


def tested_operator(case: Any) -> str | None:
    """The operator of a case of one node on tensors that the graph holds."""
    inputs, outputs = case.data_sets[0]
    nodes = case.model.graph.node
    held = all(isinstance(a, np.ndarray | np.generic) for a in (*inputs, *outputs)) and all(
        a.dtype.name in HELD.split() and a.size for a in map(np.asarray, (*inputs, *outputs))
    )
    return nodes[0].op_type if held and len(nodes) == 1 and not nodes[0].domain else None


def tried(case: Any) -> Support:
    """What becomes of one case: as it is, with what must be known, with all but the data known."""
    names = [value.name for value in case.model.graph.input]
    graphs = [imported(case, []), imported(case, names[1:])]
    made = [graph for graph in graphs if graph is not None]
    floats, int8 = bool(made), any(map(has_int8_form, made))
    return Support("yes" if floats else "-", "yes" if int8 else "-")


def imported(case: Any, known: Sequence[str]) -> Graph | None:
    """The optimized graph, with these and all inputs that must be known as initializers.

    Of its first result: further ones, the mean of a normalization for instance, are for training.
    """
    try:
        graph = stages.import_model(with_known(case, known), delegate=False)
        graph = replace(graph, outputs=graph.outputs[:1])
        return graph if models.is_quantized(graph) else passes.optimize(graph)
    except UnsupportedOpError as error:
        asked = re.findall(r"'([^' ]*)' is computed at run time", str(error))
        more = [name for name in asked if name not in known]
        return imported(case, [*known, *more]) if more else None
    except QuantglowError:
        return None


def with_known(case: Any, names: Sequence[str]) -> onnx.ModelProto:
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    for value, array in zip(model.graph.input, case.data_sets[0][0], strict=False):
        if value.name in names:
            model.graph.initializer.append(onnx.numpy_helper.from_array(array, value.name))
    return model


def has_int8_form(graph: Graph) -> bool:
    """Whether everything the operator became can compute on int8."""
    nodes = graph.compute_nodes()
    return models.is_quantized(graph) or (bool(nodes) and not any(map(refusal, nodes)))


def joined(op_type: str, forms: Sequence[Support]) -> Support:
    """All forms of an operator; int8 counts where one of them has it.

    An operator with an importer has some form, though the tests may ask for more of it.
    """
    floats = {form.floats for form in forms}
    int8 = any(form.int8 == "yes" for form in forms)
    is_mixed = len(floats) > 1 or (floats == {"-"} and op_type in IMPORTERS)
    return Support("some" if is_mixed else floats.pop(), "yes" if int8 else "-")


def table(found: dict[str, Support]) -> Iterator[str]:
    """Lines of Markdown: operators that fare alike in one row, the best first."""
    yield "| operators | float | int8 | onnxruntime |\n| --- | --- | --- | --- |\n"
    order = sorted(
        set(found.values()), key=lambda s: (("yes", "some", "-").index(s.floats), s.int8 == "-")
    )
    for support in order:
        names = ", ".join(name for name, own in found.items() if own == support)
        yield f"| {names} | {support.floats} | {support.int8} | {support.delegated} |\n"


def section() -> str:
    """What stands in the README."""
    found = supports()
    compiled = sum(s.floats != "-" for s in found.values())
    text = (
        f"Of the {len(found)} operators with tests of their own in ONNX, {compiled} are compiled. "
        'onnxruntime computes the others, also "the rest": forms of an operator that are not '
        "compiled. int8 means that an int8 form exists; integers and conditions are exact anyway."
    )
    return textwrap.fill(text, WIDTH) + "\n\n" + "".join(table(found))


def updated(text: str) -> str:
    """The README with the section of today."""
    before, rest = text.split(BEGIN)
    return before + BEGIN + section() + END + rest.split(END)[1]


def add_arguments(command: argparse.ArgumentParser) -> None:
    """It has none."""


def run(options: argparse.Namespace) -> int:
    """Write the README; the exit code."""
    README.write_text(updated(README.read_text()))
    return 0

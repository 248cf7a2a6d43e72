"""The README's list of forms that are not compiled, against the importers' refusals."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import quantglow.importer.onnx.operators
from tools.limits import LIMITS, Limit, reasons

OPERATORS = Path(quantglow.importer.onnx.operators.__file__).parent

NO_LIMITS = {
    "contrib": "operators of onnxruntime",
    "controlflow/subgraphs": "an If is named with what its branches refuse",
    "groupwise": "operators of onnxruntime",
    "math/integers": "element types: of these the README says that onnxruntime runs them",
    "nn/attention": "ONNX's definition of the operator takes their place",
    "nn/fused": "operators of onnxruntime, and shapes that ONNX does not allow",
    "quantization/integer_products": "integer products outside of dynamic quantization",
    "quantization/linear": "run-time integers, see 'Models that come quantized'",
    "quantization/qlinear": "QLinearSoftmax before opset 13",
}
"""Modules whose refusals are about values and types, not about forms of an operator."""

UNUSUAL = {
    "a spatial = 0 of opset 7": r"spatial = 0 normalizes",
    "activations of recurrent cells": r"its activations",
    "antialiasing of very large images": r"antialiasing of an axis",
    "attributes of Resize": r"keep_aspect_ratio_policy|interpolation mode|coordinate transf",
    "axes that are none": r"(is|are) outside rank|channels do not make",
    "conditions that end growing loops": r"grows until a condition",
    "conditions and numbers of trips that are no scalars": r"no scalar of",
    "integers beyond 2^53 around an image": r"which float64 cannot hold",
    "loops behind others that are refused": r"subgraphs were not looked at",
    "empty results": r"nothing is left|would have shape|no elements",
    "Scan of opset 8": r"before opset 9 it has a batch axis",
    "more indices than ONNX allows": r"indices along axis",
    "no signal": r"of length|of a signal|frames of|onesided is",
    "pads and modes that ONNX does not name": r"pad mode|negative pads|^norm ",
    "results beyond 2^31 elements": r"make more than",
    "types without arithmetic": r"^of ",
    "attributes that do not fit": r"columns that it states|is outside the|coefficients|intercepts|"
    r"values for inputs|scores? for|features are rows|of one (target|score)|are strings",
}
"""Other refusals, too rare for a list, or of malformed models.  Reports have each of them."""


REFUSALS = ("Unsupported", "OfLateShapes")


def refusals() -> Iterator[tuple[str, str]]:
    """Module and text of every reason in the code, with * for its parameters."""
    for path in sorted(OPERATORS.rglob("*.py")):
        module = path.relative_to(OPERATORS).with_suffix("").as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in REFUSALS:
                yield module, text_of(node.args[0])


def text_of(node: ast.expr) -> str:
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    return "".join(str(p.value) if isinstance(p, ast.Constant) else "*" for p in parts)


@cache
def limit_lines() -> list[str]:
    """The reasons of all models beyond a limit."""
    return [reason for limit in LIMITS for reason in reasons(limit.beyond())]


def is_listed(text: str) -> bool:
    """Whether a limit has a reason with this text."""
    pattern = re.escape(text).replace(r"\*", ".*")
    return any(re.search(f"{pattern}$", reason) for reason in limit_lines())


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: f"{limit.operators}: {limit.form}")
def test_a_form_is_compiled_up_to_its_limit(limit: Limit) -> None:
    assert reasons(limit.within()) == []
    actual = reasons(limit.beyond())
    assert actual and all(limit.reason in reason for reason in actual)


@pytest.mark.parametrize(("module", "text"), [*refusals()], ids=lambda value: value[:40])
def test_every_refusal_is_listed_or_none_of_a_form(module: str, text: str) -> None:
    known = any(re.search(pattern, text) for pattern in UNUSUAL.values())
    assert module in NO_LIMITS or known or is_listed(text), "add it to tools.limits"

"""Rules by which operators stay float: their order, and their documentation."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path

from quantglow.ir import ops
from quantglow.ir.graph.node import Node
from quantglow.profiling import profile
from quantglow.quantization.options import QuantizationConfig
from quantglow.quantization.plan import float_rules
from quantglow.quantization.plan.float_rules import FLOAT_RULES, PlanDraft, make_draft
from quantglow.quantization.plan.plan import make_plan
from tests.unit.quantization.quantization_networks import conv, graph_of, image, samples_for

README = Path(inspect.getfile(float_rules)).with_name("README.md")
X = image()
GRAPH = graph_of(ops.Sqrt(name="root", x=conv("squares", X, 4, low=0.0)), inputs=(X,))
PROFILE = profile(GRAPH, samples_for(GRAPH), progress=False)
CONFIG = QuantizationConfig()


def draft() -> PlanDraft:
    return make_draft(GRAPH, PROFILE, CONFIG)


def documented(docstring: str) -> str:
    """The first sentence of a docstring, on one line, in Markdown."""
    text = " ".join(docstring.split()).replace("``", "`")
    return text.split(". ")[0].removesuffix(".") + "."


def test_the_readme_lists_the_rules_with_the_first_sentences_of_their_docstrings() -> None:
    rows = "".join(
        f"| `{rule.__name__}` | {documented(inspect.getdoc(rule) or '')} |\n"
        for rule in FLOAT_RULES
    )
    assert f"| rule | keeps in float |\n|---|---|\n{rows}\n" in README.read_text("utf-8")


def test_the_plan_has_the_reasons_of_all_rules_in_their_order() -> None:
    result = draft()
    for rule in FLOAT_RULES:
        result = result.apply(rule)
    assert result.reasons == make_plan(GRAPH, PROFILE, CONFIG).reasons
    assert result.reasons == {GRAPH.by_name("root"): float_rules.FINISHING}


def test_a_later_rule_leaves_a_reason_as_it_is() -> None:
    root = GRAPH.by_name("root")

    def first(draft: PlanDraft) -> Mapping[Node, str]:
        return {root: "first"}

    def second(draft: PlanDraft) -> Mapping[Node, str]:
        return {root: "second", GRAPH.by_name("squares"): "second"}

    reasons = draft().apply(first).apply(second).reasons
    assert [*reasons.values()] == ["first", "second"]

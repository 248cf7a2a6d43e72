"""Every operator is primitive, a leaf, or has a lowering rule; no rule is for nothing."""

from __future__ import annotations

import pytest

from quantglow.ir.ops import OPS
from quantglow.transforms.lowering import (
    COMPUTE_PRIMITIVES,
    CONTROL_PRIMITIVES,
    VIEW_PRIMITIVES,
    lowering_rules,
)
from quantglow.transforms.lowering.rules import FALLBACK, LEAVES, find_rule

PRIMITIVES = (
    *COMPUTE_PRIMITIVES,
    *VIEW_PRIMITIVES,
    *CONTROL_PRIMITIVES,
    *LEAVES,
    *FALLBACK,
)


@pytest.mark.parametrize("name", sorted(OPS))
def test_every_operator_can_be_lowered(name: str) -> None:
    assert OPS[name] in PRIMITIVES or find_rule(OPS[name]) is not None


@pytest.mark.parametrize("cls", lowering_rules, ids=lambda c: c.__name__)
def test_every_rule_is_for_an_operator(cls: type) -> None:
    assert any(issubclass(op, cls) for op in OPS.values())


@pytest.mark.parametrize("cls", VIEW_PRIMITIVES, ids=lambda c: c.__name__)
def test_operators_that_move_data_have_no_rule(cls: type) -> None:
    assert cls not in lowering_rules

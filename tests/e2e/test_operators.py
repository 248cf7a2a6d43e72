"""The table of operators of the documentation is up to date."""

from __future__ import annotations

import pytest

from tools import operators

pytestmark = pytest.mark.slow


def test_the_page_is_up_to_date() -> None:
    text = operators.PAGE.read_text()
    assert operators.updated(text) == text, "run `make operators`"


def test_operators_that_we_compile_have_a_float_form() -> None:
    known = operators.supports()
    assert all(known[name].floats == "yes" for name in ("Conv", "Gemm", "Softmax", "Add"))
    assert known["NonMaxSuppression"].fallback == "yes"

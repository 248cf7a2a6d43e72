"""The docs' page of options is made of their declarations."""

from __future__ import annotations

from typing import Any

import pytest

from quantglow.api.pipeline.request import QuantizationArguments
from quantglow.support.options import declarations
from tools.options import FUNCTIONS, NAMELESS, PAGE, page


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "python -m tools options"


@pytest.mark.parametrize("kind", [QuantizationArguments, *FUNCTIONS.values()])
def test_every_option_has_a_row(kind: type[Any]) -> None:
    names = declarations(kind).keys() - {*NAMELESS}
    assert {name for name in names if f"\n| `{name}` |" not in page()} == set()

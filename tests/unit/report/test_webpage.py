"""A page holds all that it needs, and texts in its data are no code."""

from __future__ import annotations

import json
import re

import pytest

from quantglow.report.webpage import (
    ASSETS,
    FRAME_SCRIPT,
    SCRIPTS,
    VENDOR,
    digest,
    frame,
    page,
    read_asset,
)
from tests.support.frames import unpacked

NASTY = (
    "</script><img src=x onerror=alert(1)>",
    "<!--<script>",
    "\u2028\u2029",
    '"\\u003c',
    "$data ${data}",
)


def data_of(text: str) -> object:
    """The data that the scripts of a page read."""
    (actual,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text)
    return json.loads(actual)


@pytest.mark.parametrize("name", NASTY)
def test_a_page_keeps_texts_as_they_are(name: str) -> None:
    assert data_of(page("model", {"name": name})) == {"name": name}


@pytest.mark.parametrize("name", NASTY)
def test_texts_are_no_markup(name: str) -> None:
    plain = page("model", {"name": ""})
    assert page(name, {"name": name}).count("<") == plain.count("<")


def test_the_policy_allows_the_own_script_and_style_only() -> None:
    text = page("model", {})
    (policy,) = re.findall(r'Content-Security-Policy" content="(.*?)"', text)
    script = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    style = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    assert policy == (
        f"default-src 'none'; style-src '{digest(*style)}'; script-src '{digest(*script)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def test_a_page_loads_nothing() -> None:
    assert not re.findall(r"<(?:link|img|iframe|script src|base)\b", page("model", {}))


def test_a_page_has_the_licence_of_its_library() -> None:
    license_text = read_asset(VENDOR / "dagre.LICENSE")
    assert "Permission is hereby granted" in license_text
    assert license_text in page("model", {"graph": {}})
    assert license_text not in page("model", {})


def test_every_script_is_in_the_page() -> None:
    assert {path.name for path in ASSETS.glob("*.js")} == {*SCRIPTS, FRAME_SCRIPT}


def test_infinite_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        page("model", {"db": float("inf")})


@pytest.mark.parametrize("name", NASTY)
def test_a_frame_holds_the_page_in_one_attribute(name: str) -> None:
    text = page(name, {"name": name})
    assert frame(text).count('"') == 6
    assert unpacked(frame(text)) == text


def test_a_frame_is_half_as_long_as_its_page() -> None:
    """A notebook is as large as its frames."""
    text = page("model", {"graph": {"nodes": [{"name": f"conv{i}"} for i in range(1000)]}})
    assert len(frame(text)) < len(text) / 2

"""The documentation's site: links, names, and lists of parameters."""

from __future__ import annotations

import inspect
import re
from importlib import import_module

import pytest

import quantglow
from tools import docs_site, pictures
from tools.docstring_lists import with_definitions

DOCS = docs_site.ROOT / "docs"
KNOWN = {"deploy.md", "how_to/speed.md", "benchmarks/RESULTS.md", "CHANGELOG.md"}


def test_every_public_name_is_in_the_api_once() -> None:
    actual = re.findall(r"^::: quantglow\.(\w+)$", (DOCS / "reference/api.md").read_text(), re.M)
    assert sorted(actual) == sorted(set(quantglow.__all__) - {"__version__"})


@pytest.mark.parametrize(
    ("text", "source", "expected"),
    [
        ("[a](../benchmarks/RESULTS.md#x)", "deploy.md", "[a](benchmarks/RESULTS.md#x)"),
        ("[a](docs/deploy.md)", "CHANGELOG.md", "[a](deploy.md)"),
        ("[a](../../benchmarks/RESULTS.md)", "how_to/speed.md", "[a](../benchmarks/RESULTS.md)"),
        ("[a](../deploy.md)", "how_to/speed.md", "[a](../deploy.md)"),
        ("[a](../tools/README.md)", "deploy.md", "a"),
        ("[a](https://example.org/b.md)", "deploy.md", "[a](https://example.org/b.md)"),
        ("![a](pictures/b.svg)", "deploy.md", "![a](pictures/b.svg)"),
    ],
)
def test_links_lead_to_pages_only(text: str, source: str, expected: str) -> None:
    assert docs_site.relinked(text, source, KNOWN) == expected


def test_public_names_lead_to_the_api() -> None:
    html = "<code>qg.compile(model)</code> <code>Report</code> <code>other</code>"
    linked = docs_site.linked_names(html, "api.html")
    assert '<a href="api.html#quantglow.compile"><code>qg.compile(model)</code></a>' in linked
    assert '<a href="api.html#quantglow.Report"><code>Report</code></a>' in linked
    assert "<code>other</code>" in linked.replace("</a>", "")


def test_lists_of_parameters_become_definitions() -> None:
    text = "Do it.\n\nmodel    a path\ndata, n  samples\n         and more\n\nRaises  nothing."
    built = with_definitions(text)
    assert "`model`\n:   a path" in built
    assert "`data`, `n`\n:   samples\n    and more" in built
    assert with_definitions("Plain  text\nstays.") != ""
    assert with_definitions("A line.\nan  other") == "A line.\nan  other"


def test_the_picture_shows_the_results() -> None:
    actual = pictures.ratios(pictures.RESULTS.read_text())
    assert len(actual) == 7
    shown = pictures.PICTURE.read_text()
    for name, ratios in actual.items():
        assert name in shown
        assert all(f">{ratio:.1f}<" in shown for ratio in ratios.values())


@pytest.mark.slow_variants
@pytest.mark.parametrize("path", ["api.load.load", "quantization.options.QuantizationConfig"])
def test_parameters_and_docstrings_that_are_derived_are_shown(path: str) -> None:
    griffe = pytest.importorskip("griffe")
    from tools.docs_docstrings import Definitions

    place, _, name = path.rpartition(".")
    module = griffe.load(f"quantglow.{place}", extensions=griffe.Extensions(Definitions()))
    shown, real = module[name], inspect.signature(getattr(import_module(module.path), name))
    parameters = [each.name for each in shown.parameters if each.name != "self"]
    assert parameters == list(real.parameters)
    assert f"`{parameters[-1]}`\n:   " in shown.docstring.value

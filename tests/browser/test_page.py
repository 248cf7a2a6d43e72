"""The page that explains a model works in Chromium, whatever the names in the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantglow as qg
from quantglow.evaluation.layer_speed import LayerSpeed
from quantglow.evaluation.report import PageSource
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Input, Node
from quantglow.ir.ops import Relu
from quantglow.ir.types import f32
from quantglow.profiling import Histogram
from quantglow.report import CodeUse, LayerAccuracy, OutputAccuracy
from quantglow.report.page import Figures, graph_page
from quantglow.report.webpage import frame
from tests.browser.conftest import Opener
from tests.support.small_network import small_model, small_samples

pytestmark = pytest.mark.browser

NASTY = "</script><img src=x onerror=window.hacked=1>"
NAMES = [f"/{stage}/{block}/{i}" for stage in ("one", "two") for block in "ab" for i in range(3)]
DECIBELS = (12.0, 9.0, None, float("inf"), 20.0, 100.0)
USE = CodeUse(-1.0, 1.0, levels=256, used=250, saturation=0.0, seen=1.0, core=0.1)
EVENT = {"ph": "X", "tid": 0, "name": NASTY, "cat": "kernel", "ts": 1.0, "dur": 2.0}
EVERY = ("advice", "graph", "layers", "outputs", "histograms", "timeline", "facts")


def graph_of(names: list[str]) -> Graph:
    """A chain of nodes with these names."""
    node: Node = Input(name="x", tensor=f32(4))
    first = node
    for name in names:
        node = Relu(name=name, x=node)
    assert isinstance(first, Input)
    return Graph((first,), (("y", node),))


def layer(name: str, alone: float | None) -> LayerAccuracy:
    return LayerAccuracy(name, "Relu", "int8", "", 30.0, 25.0, alone, USE)


def explained() -> str:
    """A page with every section, and names that are markup."""
    names = [*NAMES, NASTY]
    values = Histogram.of(np.linspace(-1, 1, 999, dtype=np.float32))
    layers = [layer(n, db) for n, db in zip([NASTY, *NAMES], DECIBELS, strict=False)]
    speeds = [LayerSpeed(n, "Relu", "int8", 2.0, 1.0) for n in names]
    outputs = [OutputAccuracy(NASTY, 40.0, 1.0, 0.1)]
    source = PageSource(
        NASTY, dict.fromkeys([*names, "tail"], values), {"preset": NASTY}, {"traceEvents": [EVENT]}
    )
    figures = Figures(layers, outputs, speeds, NASTY, [NASTY], [("target", NASTY)])
    return graph_page(graph_of(names), source, figures).text


@pytest.fixture
def shown(show: Opener) -> Any:
    return show(explained())


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_loads_without_errors_and_without_network(show: Opener, scheme: str) -> None:
    shown = show(explained(), scheme)
    assert shown.errors == []
    assert [url for url in shown.requests if not url.startswith("file://")] == []
    assert len(shown.requests) == 1


def test_every_section_is_shown(shown: Any) -> None:
    assert all(shown.page.is_visible(f"#{name} h2") for name in EVERY)


def test_names_are_no_code(shown: Any) -> None:
    shown.page.click(f".card:has-text({NASTY!r}) .where >> nth=0")
    assert shown.page.evaluate("window.hacked") is None
    assert shown.count("img") == 0
    assert shown.text("h1") == NASTY
    assert shown.text("#details h3") == NASTY


def column(shown: Any, index: int) -> list[str]:
    return [
        str(text) for text in shown.page.locator(f"#layers td:nth-child({index})").all_inner_texts()
    ]


def test_columns_sort_both_ways_with_missing_values_last(shown: Any) -> None:
    rising = ["9.0", "12.0", "20.0", "100.0", "inf", "–"]
    button = shown.page.locator("#layers th:nth-child(4) button")
    button.click()
    assert column(shown, 4) == rising
    button.click()
    assert column(shown, 4) == [*rising[4::-1], "–"]
    assert shown.page.locator("#layers th[aria-sort]").count() == 1


def test_texts_sort_as_texts(shown: Any) -> None:
    shown.page.click("#layers th:nth-child(1) button")
    assert column(shown, 1) == [*NAMES[: len(DECIBELS) - 1], NASTY]


def test_blocks_fold_and_unfold(shown: Any) -> None:
    whole = len(NAMES) + 2
    assert shown.count(".node") == whole
    shown.page.click("#fold")
    assert shown.count(".node") == 4  # x, one, two, and the last node
    assert shown.count("path.edge") == 3
    assert shown.count("#blocks button") == 2
    shown.page.click("#blocks button:has-text('one')")
    assert shown.count(".node") == 5  # one is a and b now
    assert shown.count("#blocks button") == 4
    shown.page.click("#unfold")
    assert shown.count(".node") == whole
    assert shown.count("path.edge") == whole - 1


def test_a_double_click_unfolds_a_block(shown: Any) -> None:
    shown.page.click("#fold")
    shown.page.click("#fit")
    shown.page.locator(".node.block").first.dblclick()
    assert shown.count(".node") == 5


def test_search_marks_all_and_shows_the_next(shown: Any) -> None:
    shown.page.click("#fold")
    shown.page.fill("#search", "/TWO/b")
    assert shown.text("#found").startswith("3 found")
    shown.page.press("#search", "Enter")
    shown.page.press("#search", "Enter")
    assert shown.text("#details h3") == "/two/b/1"
    assert shown.count(".node.match") == 3
    assert shown.count(".node.chosen") == 1


def test_the_flag_is_copied(shown: Any) -> None:
    shown.page.click(".card:has-text('/one/a/0') .copy >> nth=1")
    shown.page.wait_for_selector(".copy:has-text('Copied')")
    copied = shown.page.evaluate("navigator.clipboard.readText()")
    assert copied == "--nodes-to-exclude /one/a/0"


@pytest.mark.parametrize("mode", ["error", "time", "precision"])
def test_colours_follow_the_choice(shown: Any, mode: str) -> None:
    def fills() -> list[str]:
        script = "found => found.map(rect => getComputedStyle(rect).fill)"
        return list(shown.page.eval_on_selector_all(".node rect", script))

    for other in ("time", "error"):
        shown.page.click(f"[data-mode={other}]")
    before = fills()
    shown.page.click(f"[data-mode={mode}]")
    assert (fills() == before) == (mode == "error")
    assert shown.page.get_attribute(f"[data-mode={mode}]", "aria-pressed") == "true"
    assert shown.text("#legend")


def test_the_worst_layer_has_another_colour_than_a_good_one(shown: Any) -> None:
    def fill(name: str) -> str:
        node = shown.page.locator(f".node:has(.sub:text-is('{name}')) rect")
        return str(node.evaluate("rect => getComputedStyle(rect).fill"))

    assert fill("/one/a/0") != fill("/one/b/1")


def test_the_wheel_zooms_and_the_mouse_moves(shown: Any) -> None:
    def view() -> Any:
        return shown.page.get_attribute("#canvas g", "transform")

    observed = [view()]
    shown.page.locator("#canvas").hover()
    shown.page.mouse.wheel(0, -300)
    shown.page.wait_for_timeout(50)
    observed.append(view())
    shown.page.mouse.down()
    shown.page.mouse.move(200, 300)
    shown.page.mouse.up()
    observed.append(view())
    shown.page.mouse.move(100, 100)
    assert view() == observed[-1]
    assert len({*observed}) == 3
    shown.page.click("#fit")
    assert view() == observed[0]


def test_the_row_of_a_layer_shows_its_node(shown: Any) -> None:
    shown.page.click("#layers tr:has-text('/one/b/0')")
    assert shown.text("#details h3") == "/one/b/0"
    assert shown.count("#details svg.histogram") == 1


def test_histograms_are_searched(shown: Any) -> None:
    shown.page.fill("#tensor", "TAIL")
    assert shown.count("#histograms .card") == 1
    assert shown.count("#histograms .histogram rect") > 10


def test_the_timeline_has_a_box_for_each_event(shown: Any) -> None:
    assert shown.count(".timeline rect") == 1


def test_the_page_of_a_compiled_model_works(show: Opener) -> None:
    model = qg.quantize_and_compile(small_model(), small_samples(), num_threads=1, progress=False)
    actual = show(model.report.to_html())
    assert actual.errors == []
    assert actual.count(".node") == len(
        [node for node in model.graph.nodes if node.op != "Constant"]
    )


def test_the_page_of_a_loaded_model_says_what_is_missing(show: Opener, tmp_path: Path) -> None:
    model = qg.quantize_and_compile(small_model(), small_samples(), num_threads=1, progress=False)
    model.save(tmp_path / "model.qgm")
    loaded = show(qg.load(tmp_path / "model.qgm", num_threads=1).report.to_html())
    assert loaded.errors == []
    assert "A file of a model has no histograms" in loaded.text("#histograms")


@pytest.mark.parametrize("kind", ["graph", "profile"])
def test_notebooks_show_frames(show: Opener, kind: str) -> None:
    graph = qg.import_model(small_model())
    drawn = {"graph": graph, "profile": qg.profile(graph, small_samples(), progress=False)}[kind]
    actual = show(drawn._repr_html_(), ready="iframe")
    frame = actual.page.frame_locator("iframe")
    frame.locator({"graph": ".node", "profile": "svg.histogram"}[kind]).first.wait_for()
    assert actual.errors == []


def test_a_framed_page_is_the_page(show: Opener) -> None:
    shown = show(frame(explained()), ready="iframe")
    shown.page.frame_locator("iframe").locator(".node").first.wait_for()
    assert shown.page.frame_locator("iframe").locator("h1").inner_text() == NASTY

"""Pages in Chromium: a browser for all tests, and a page that keeps what went wrong in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tools.browser_setup import opened


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    with opened() as browser:
        yield browser


@dataclass
class Shown:
    """A page in the browser, its console errors, and what it asked the network for."""

    page: Any
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def text(self, selector: str) -> str:
        """The text of an element."""
        return str(self.page.inner_text(selector))

    def count(self, selector: str) -> int:
        """Number of elements."""
        return int(self.page.locator(selector).count())


@dataclass
class Opener:
    """Opens texts as files of a folder."""

    chromium: Any
    folder: Path
    contexts: list[Any] = field(default_factory=list)

    def __call__(self, text: str, scheme: str = "light", ready: str = "body[data-ready]") -> Shown:
        path = self.folder / "page.html"
        path.write_text(text, encoding="utf-8")
        context = self.chromium.new_context(
            color_scheme=scheme, permissions=["clipboard-read", "clipboard-write"]
        )
        self.contexts.append(context)
        shown = Shown(context.new_page())
        shown.page.on("console", lambda message: shown.errors.append(message.text))
        shown.page.on("pageerror", lambda error: shown.errors.append(str(error)))
        shown.page.on("request", lambda request: shown.requests.append(request.url))
        shown.page.goto(path.as_uri())
        shown.page.wait_for_selector(ready, state="attached")
        return shown


@pytest.fixture
def show(chromium: Any, tmp_path: Path) -> Iterator[Opener]:
    opener = Opener(chromium, tmp_path)
    yield opener
    for context in opener.contexts:
        context.close()

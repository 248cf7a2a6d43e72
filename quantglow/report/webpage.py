"""Pages of HTML that need no other file: templates with data, styles and scripts.

Texts in the data are untrusted.  They stand in the page as JSON without ``<``, ``>`` and ``&``, and
the scripts set them as text.  The page's policy runs these scripts only and loads nothing.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

FOLDER = Path(__file__).parent
ASSETS, VENDOR = FOLDER / "assets", FOLDER / "vendor"
SCRIPTS = (
    "elements.js",
    "layout.js",
    "blocks.js",
    "colours.js",
    "zoom.js",
    "graph.js",
    "table.js",
    "histograms.js",
    "timeline.js",
    "page.js",
)
"""Scripts in the order in which they run; the last one builds the page."""
FRAME_SCRIPT = "frame.js"
"""The script that unpacks a page in a frame."""

UNSAFE = {ord(letter): f"\\u{ord(letter):04x}" for letter in "<>&\u2028\u2029"}
"""Characters that could end a script, as JSON may write them."""
HEIGHT = 560
"""Height of a page in a notebook, in pixels."""


def page(title: str, data: Mapping[str, Any]) -> str:
    """The page of ``data``: plain values in which every float is finite.

    A page without a graph needs no library.
    """
    style, drawing = read_asset(ASSETS / "page.css"), [_library()] if "graph" in data else []
    script = "\n".join([*drawing, *(read_asset(ASSETS / name) for name in SCRIPTS)])
    policy = (
        f"default-src 'none'; style-src '{digest(style)}'; script-src '{digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return Template(read_asset(ASSETS / "page.html")).substitute(
        title=html.escape(title), policy=policy, style=style, script=script, data=_safe_json(data)
    )


@dataclass(frozen=True)
class Page:
    """A page: its text is a file of its own, its drawing in a notebook is a frame."""

    text: str

    @staticmethod
    def of(title: str, data: Mapping[str, Any]) -> Page:
        """The page of ``data``: plain values in which every float is finite."""
        return Page(page(title, data))

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return frame(self.text)


def frame(text: str) -> str:
    """A page inside of another one, apart from its styles and scripts.

    It is packed, because a notebook has such a frame for each object that it shows.
    """
    packed = base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()
    frame = Template(read_asset(ASSETS / "frame.html"))
    inside = frame.substitute(packed=packed, script=read_asset(ASSETS / FRAME_SCRIPT))
    return (
        f'<iframe srcdoc="{html.escape(inside)}" sandbox="allow-scripts" '
        f'style="width:100%;height:{HEIGHT}px;border:0"></iframe>'
    )


def _safe_json(data: Mapping[str, Any]) -> str:
    """JSON that a page may contain, whatever the texts in it."""
    return json.dumps(data, allow_nan=False, separators=(",", ":")).translate(UNSAFE)


def _library() -> str:
    """The layout library behind its license."""
    return f"/*!\n{read_asset(VENDOR / 'dagre.LICENSE')}*/\n{read_asset(VENDOR / 'dagre.min.js')}"


def read_asset(path: Path) -> str:
    """The text of a file of the package."""
    return path.read_text(encoding="utf-8")


def digest(text: str) -> str:
    """A content security policy's name of an inline style or script."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"

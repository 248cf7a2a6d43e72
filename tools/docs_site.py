"""Hooks of ``mkdocs``, which mkdocs.yml names.

Pages that belong elsewhere in the repository (results, notes, notebooks, the changelog) join the
site; links to files that are no page lose their target; public names in text lead to the API.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import quantglow

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("CHANGELOG.md", "benchmarks/*.md", "benchmarks/notes/*.md", "notebooks/*.ipynb")
"""Patterns of the files outside of docs/ that are pages."""
NO_PAGES = frozenset({"benchmarks/README.md", "benchmarks/notes/README.md"})
API = "reference/api.md"

LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)#\s]+)(#[^)\s]*)?\)")
FENCE = re.compile(r"^```(\w+) (\S+)$", re.MULTILINE)
"""Code that a reader puts into a file."""
NAME = re.compile(r"<code>(?:(?:qg|quantglow)\.)?(\w+)(\([^<]*\))?</code>(?!</a>)")


def pages() -> Iterator[str]:
    """Paths from the root of the files outside of docs/ that are pages."""
    for pattern in PAGES:
        for path in sorted(ROOT.glob(pattern)):
            name = path.relative_to(ROOT).as_posix()
            if name not in NO_PAGES:
                yield name


def on_files(files: Any, config: Any) -> Any:
    """Add the pages from outside of docs/ to the files of the site."""
    from mkdocs.structure.files import File

    for name in pages():
        files.append(File(name, str(ROOT), config.site_dir, config.use_directory_urls))
    return files


vars(on_files)["mkdocs_priority"] = 100  # before plugins look for notebooks


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """The text of a page with links between pages only, and its files of code with titles."""
    actual = relinked(markdown, page.file.src_uri, {file.src_uri for file in files})
    return FENCE.sub(r'```\1 title="\2"', actual)


def relinked(markdown: str, source: str, known: set[str]) -> str:
    """Links of docs/ to other folders lead to their pages; those to other files become text."""

    def link(match: re.Match[str]) -> str:
        text, target, anchor = match[1], match[2], match[3] or ""
        if "://" in target or target.startswith("mailto:"):
            return match[0]
        actual = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        actual = actual.removeprefix("../").removeprefix("docs/")
        if actual not in known:
            return text
        start = posixpath.dirname(source) or "."
        return f"[{text}]({posixpath.relpath(actual, start)}{anchor})"

    return LINK.sub(link, markdown)


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """The page with links from public names to the API."""
    api = files.get_file_from_path(API)
    return linked_names(html, api.url_relative_to(page.file))


def linked_names(html: str, api: str) -> str:
    """Code that is a public name leads to its place in the API."""

    def link(match: re.Match[str]) -> str:
        if match[1] not in quantglow.__all__ or match[1].startswith("__"):
            return match[0]
        return f'<a href="{api}#quantglow.{match[1]}">{match[0]}</a>'

    return NAME.sub(link, html)

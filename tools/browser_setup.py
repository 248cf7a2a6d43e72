"""Chromium from Debian, and Playwright, which drives it: ``make browser-setup``."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tools.cross_setup import download, install_packages

PROGRAMS = ("chromium-headless-shell", "chromium")
PACKAGE = "chromium-headless-shell"
OPTIONS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
"""Options for a browser that runs as root and asks no host of the network."""


def program() -> str | None:
    """The browser; None if there is none."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


@contextmanager
def opened() -> Iterator[Any]:
    """A browser without a window, as Playwright's ``Browser``."""
    from playwright.sync_api import sync_playwright  # an extra: imported where it is needed

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program(), args=list(OPTIONS))
        yield browser
        browser.close()


def main() -> None:
    """Install what is missing."""
    if program() is None:
        install_packages((PACKAGE,))
    download(sys.executable, "-m", "pip", "install", "-q", "playwright>=1.49")
    with opened() as browser:
        print(f"ready: Chromium {browser.version}")


if __name__ == "__main__":
    main()

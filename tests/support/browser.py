"""Pages in Chromium without a window, served from a folder."""

from __future__ import annotations

import os
import queue
import shutil
import signal
import subprocess
import tempfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

BROWSER = next(
    filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "chrome"))), None
)
OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")
SECONDS = 300


class _Pages(SimpleHTTPRequestHandler):
    """Files, and the first answer that a page sends."""

    def __init__(self, answers: queue.Queue[str], *arguments: Any, **options: Any) -> None:
        self.answers = answers
        super().__init__(*arguments, **options)

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        self.answers.put(self.rfile.read(length).decode())
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing."""


def answer_of_page(folder: Path) -> str:
    """The text that ``index.html`` of a folder posts to ``/answer``."""
    answers: queue.Queue[str] = queue.Queue()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Pages, answers, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with server, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        page = f"http://127.0.0.1:{server.server_port}/index.html"
        command = [
            str(BROWSER),
            *OPTIONS,
            f"--user-data-dir={profile}",
            "--remote-debugging-port=0",
        ]
        # In a session of its own, so that the processes that it starts end with it.
        browser = subprocess.Popen(
            [*command, page],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            return answers.get(timeout=SECONDS)
        finally:
            os.killpg(browser.pid, signal.SIGKILL)
            browser.wait()
            server.shutdown()

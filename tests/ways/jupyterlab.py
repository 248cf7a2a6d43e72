"""Open a notebook in JupyterLab, run all cells by the menu, and check what they show."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tools.browser_setup import opened

MINUTES = 5
DONE = """() => {
  const prompts = [...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')];
  return prompts.length > 0 && prompts.every(prompt => /\\[\\d+\\]/.test(prompt.textContent));
}"""


def started(folder: str, port: int) -> subprocess.Popen[bytes]:
    """A JupyterLab that takes connections.  Raises ``RuntimeError``."""
    options = [f"--port={port}", f"--notebook-dir={folder}", "--ServerApp.token=", "--allow-root"]
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", *options]
    lab = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    for _ in range(300):
        with socket.socket() as ours:
            if ours.connect_ex(("127.0.0.1", port)) == 0:
                return lab
        time.sleep(0.2)
    lab.kill()
    raise RuntimeError("JupyterLab does not answer")


def run_all(page: Any, port: int, notebook: str) -> None:
    """Open the notebook and run all its cells."""
    page.goto(f"http://127.0.0.1:{port}/lab/tree/{notebook}")
    page.wait_for_selector(".jp-CodeCell", timeout=60_000)
    page.wait_for_selector("text=/ipykernel.*Idle/", timeout=60_000)  # the kernel is connected
    page.click('.lm-MenuBar-itemLabel:text-is("Run")')
    page.click('.lm-Menu-itemLabel:text-is("Run All Cells")')
    page.wait_for_function(DONE, timeout=60_000 * MINUTES)


def main(folder: str, notebook: str) -> int:
    with socket.socket() as ours:
        ours.bind(("127.0.0.1", 0))
        port = int(ours.getsockname()[1])
    lab = started(folder, port)
    try:
        with opened() as browser:
            page = browser.new_page(viewport={"width": 1300, "height": 1600})
            run_all(page, port, notebook)
            errors = page.locator('[data-mime-type="application/vnd.jupyter.error"]').count()
            pictures = page.locator(".jp-OutputArea-output img, .jp-OutputArea-output svg").count()
            texts = page.locator(".jp-OutputArea-output").count()
            page.screenshot(path=str(Path(folder) / "lab.png"))
    finally:
        lab.terminate()
        lab.wait(30)
    print(f"{notebook}: {texts} outputs, {pictures} pictures, {errors} errors")
    return 0 if texts and not errors else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

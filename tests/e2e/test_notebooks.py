"""The notebooks run from top to bottom, their own asserts hold, and they have no outputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
MAX_NBYTES = 60_000
SECONDS_A_CELL = 300

each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)


def code_cells(path: Path) -> list[dict[str, Any]]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


@pytest.mark.slow
@each
@pytest.mark.filterwarnings("default")
def test_runs_from_top_to_bottom(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An assert that fails inside raises CellExecutionError, with the cell and its traceback."""
    why = "notebooks need: pip install 'quantglow[notebooks]'"
    for module in ("ipykernel", "matplotlib"):
        pytest.importorskip(module, reason=why)
    client = pytest.importorskip("nbclient", reason=why)
    nbformat = pytest.importorskip("nbformat", reason=why)
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    resources = {"metadata": {"path": str(FOLDER)}}
    client.NotebookClient(notebook, timeout=SECONDS_A_CELL, resources=resources).execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))


@each
def test_is_committed_without_outputs(path: Path) -> None:
    assert all(not cell["outputs"] for cell in code_cells(path))
    assert all(cell["execution_count"] is None for cell in code_cells(path))


@each
def test_is_small(path: Path) -> None:
    assert path.stat().st_size < MAX_NBYTES


@each
def test_checks_its_results(path: Path) -> None:
    checks = [c for c in code_cells(path) if "assert" in "".join(c["source"])]
    assert len(checks) >= 4


def test_there_are_notebooks() -> None:
    assert len(NOTEBOOKS) == 4

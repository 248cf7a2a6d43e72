"""The sentences that ``python -m tools prose`` lists."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.prose import offenders


def lines(tmp_path: Path, name: str, content: str) -> list[int]:
    """Lines of the offenders in a file of this content."""
    path = tmp_path / name
    path.write_text(content)
    return sorted(line for line, _ in offenders(path))


@pytest.mark.parametrize(
    "docstring",
    [
        "Of many rows every second one.",
        "What it costs.",
        "Whose samples count.",
        "Where graphs end.",
        "Adds them.  Those of a loop stay.",
        "Every so-manieth row.",
    ],
)
def test_a_docstring_without_a_subject_is_listed(tmp_path: Path, docstring: str) -> None:
    assert lines(tmp_path, "m.py", f'\n\ndef f():\n    """{docstring}"""\n') == [4]


@pytest.mark.parametrize(
    "docstring",
    ["Rows of a layer, of which every second one counts.", "What is a tile?", "Offsets in bytes."],
)
def test_a_docstring_with_a_subject_is_not_listed(tmp_path: Path, docstring: str) -> None:
    assert lines(tmp_path, "m.py", f'"""{docstring}"""\n') == []


def test_docstrings_of_constants_comments_and_names_of_tests_count(tmp_path: Path) -> None:
    content = '''
LIMIT = 3
"""Of a loop."""
# Where it stands, is unknown
# Of two lines


def test_what_it_does():
    """Holds."""
'''
    assert lines(tmp_path, "m.py", content) == [3, 4, 8]


def test_the_line_of_a_later_sentence_is_its_own(tmp_path: Path) -> None:
    assert lines(tmp_path, "m.py", '"""One.\n\nIt is two lines\nlong. Of it.\n"""\n') == [4]


def test_headings_tables_and_code_of_markdown_do_not_count(tmp_path: Path) -> None:
    content = "# What runs\n\n| Of |\n\n```\nOf it\n```\n\n`Of` is a word.\n\n- Of lists\n"
    assert lines(tmp_path, "m.md", content) == [11]


def test_cells_of_notebooks_count(tmp_path: Path) -> None:
    cells = '{"cells": [{"cell_type": "markdown", "source": ["Fine.\\n", "Those are not."]}]}'
    assert lines(tmp_path, "m.ipynb", cells) == [2]

"""The arena over time: no two values share a byte, and each is where its letter is."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

import quantglow as qg
from quantglow.cli.main import main
from quantglow.evaluation.footprint import ArenaBlock, MemoryMap
from quantglow.memory.planning import plan_program
from quantglow.report.memory import FREE, LETTERS, MAP_COLUMNS, ROWS, MemoryPicture, grid
from tests.support.embedded import network

TWO = MemoryMap((ArenaBlock("wide", 0, 800, 0, 2), ArenaBlock("tall", 800, 200, 2, 3)), 4, 1000)


def planned(name: str) -> MemoryMap:
    """The map of an embedded network's float program."""
    built = plan_program(qg.import_model(network(name).path, network(name).shapes), None)
    return MemoryMap.of(built.program, built.plan)


@pytest.mark.parametrize("name", ["mnist", "ppocr_cls"])
def test_values_share_no_byte(name: str) -> None:
    planned_program = planned(name)
    blocks = planned_program.blocks
    assert max(b.offset + b.nbytes for b in blocks) == planned_program.nbytes
    for at, a in enumerate(blocks):
        assert 0 <= a.begin <= a.end < planned_program.kernels
        for b in blocks[at + 1 :]:
            together = max(a.begin, b.begin) <= min(a.end, b.end)
            assert (
                not together or a.offset + a.nbytes <= b.offset or b.offset + b.nbytes <= a.offset
            )


def test_letters_are_where_values_are() -> None:
    high, *remaining = grid(TWO, 4)
    assert high == FREE + FREE + "BB"
    assert remaining[-1] == "AAA" + FREE
    assert len([*grid(TWO, 4)]) == ROWS


def test_the_text_names_the_largest_values() -> None:
    lines = str(planned("ppocr_cls")).splitlines()
    assert all(len(row) == MAP_COLUMNS for row in lines[1 : ROWS + 1])
    assert lines[ROWS + 1].split()[0] == LETTERS[0]
    assert lines[-1].startswith("  and ")


def test_an_empty_arena_is_said_to_be() -> None:
    empty = MemoryMap((), 1, 0)
    assert str(empty) == "The arena is empty."
    ElementTree.fromstring(str(MemoryPicture(empty)))


def test_the_picture_has_a_rectangle_for_each_value() -> None:
    drawn = ElementTree.fromstring(str(MemoryPicture(TWO)))
    titles = [e.text for e in drawn.iter("{http://www.w3.org/2000/svg}title")]
    assert titles == ["wide, 800 bytes", "tall, 200 bytes"]


def test_the_command_writes_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, picture = str(network("mnist").path), tmp_path / "map.svg"
    assert main(["inspect", model, "--stage", "memory", "--output", str(picture)]) == 0
    ElementTree.fromstring(picture.read_text())
    assert main(["inspect", model, "--stage", "memory"]) == 0
    shown = capsys.readouterr().out
    assert "The arena over time" in shown and "Layers, in bytes" in shown and "Table(" not in shown
    assert main(["inspect", model, "--output", str(picture)]) == 1
    assert "only --stage memory" in capsys.readouterr().err

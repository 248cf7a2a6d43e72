"""The table of arenas."""

from __future__ import annotations

import argparse

import pytest

from benchmarks.latency import arenas
from benchmarks.networks.branchy import BRANCHY


def table(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    parser = argparse.ArgumentParser()
    arenas.add_arguments(parser)
    assert arenas.run(parser.parse_args(arguments)) == 0
    return capsys.readouterr().out.splitlines()


def test_a_search_halves_an_arena_and_says_that_it_is_optimal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    *_, row, _, summary = table(capsys, "--branchy", "concats_11")
    assert row.startswith("| concats_11 | 2,972,672 | 1,532,928 | 0.516 |") and "| yes |" in row
    assert summary == "mean ratio 0.516, 1 of 1 optimal"


def test_every_branchy_graph_is_well_formed() -> None:
    for make in BRANCHY.values():
        make().verify()


def test_equal_names_are_equal_graphs() -> None:
    assert str(BRANCHY["randwire_0"]()) == str(BRANCHY["randwire_0"]())
    assert str(BRANCHY["randwire_0"]()) != str(BRANCHY["randwire_1"]())


def test_a_row_shows_what_each_search_saves(capsys: pytest.CaptureFixture[str]) -> None:
    header, _, row = table(capsys, "--branchy", "concats_11", "--searches")
    assert header.startswith("| graph | fast | exact order |")
    assert row == "| concats_11 | 2,972,672 | 1,851,136 | 1,629,120 | 1,532,928 | 1,532,928 |"

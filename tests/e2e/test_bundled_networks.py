"""Real networks in C programs compute what Python computes, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import quantglow as qg
from tests.support.bundled import built, each_compiler, octets, written
from tests.support.embedded import MAKERS, network
from tests.support.levels import LEVELS_HERE

SAMPLES = 4
LEVELS = LEVELS_HERE or ("native",)

NETWORKS = [
    name if name == "mnist" else pytest.param(name, marks=pytest.mark.slow) for name in MAKERS
]


@pytest.fixture(scope="module", params=NETWORKS)
def compiled(request: pytest.FixtureRequest) -> tuple[Any, list[dict[str, Any]]]:
    """A network in int8, and samples."""
    chosen = network(request.param)
    feeds = chosen.feeds(SAMPLES)
    return qg.quantize_and_compile(chosen.path, feeds, progress=False), feeds


@pytest.fixture(scope="module", params=LEVELS)
def folder(
    compiled: Any, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The bundle of a level, as an object and as a library."""
    folder = tmp_path_factory.mktemp("network")
    compiled[0].export_bundle(folder, name="net", target=request.param, library="shared")
    return folder


@pytest.mark.parametrize("library", ["static", "shared"])
@each_compiler
def test_programs_write_what_python_computes(
    compiled: Any, folder: Path, compiler: str, library: str
) -> None:
    model, feeds = compiled
    expected = octets(y for feed in feeds for y in model.run(None, feed))
    program = built(folder, compiler, library=library)
    assert written(program, model.graph, feeds, "heap") == expected


@pytest.mark.slow_variants
@pytest.mark.parametrize("weights", ["c", "bin"])
@each_compiler
def test_weights_may_lie_anywhere(
    compiled: Any, tmp_path: Path, compiler: str, weights: str
) -> None:
    model, feeds = compiled
    model.export_bundle(tmp_path, name="net", weights=weights)
    expected = octets(y for feed in feeds for y in model.run(None, feed))
    assert written(built(tmp_path, compiler), model.graph, feeds, "heap") == expected

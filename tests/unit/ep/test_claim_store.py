"""Claims of a graph are found once, and read from the disk by later sessions."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from quantglow import ep
from quantglow.codegen.llvm import cache
from quantglow.ep import claim_store
from tests.support.plug_in import session
from tests.unit.ep.test_provider import network, picture


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("QUANTGLOW_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(cache, "_chosen", [])
    return tmp_path / "claims"


def test_a_second_session_imports_no_graph_to_claim_it() -> None:
    first = session(network(1, 8))
    with patch.object(claim_store, "claim_nodes", side_effect=AssertionError):
        second = session(network(1, 8))
    assert ep.report(second).claim == ep.report(first).claim
    feeds = {"x": picture(1, 8)}
    np.testing.assert_array_equal(second.run(None, feeds)[0], first.run(None, feeds)[0])


def test_other_weights_are_another_graph(folder: Path) -> None:
    session(network(1, 8))
    model = network(1, 8)
    weight = model.graph.initializer[0]
    weight.raw_data = bytes(reversed(weight.raw_data))
    session(model)
    assert len(list(folder.glob("*.o"))) == 2


def test_a_damaged_entry_is_written_anew(folder: Path) -> None:
    session(network(1, 8))
    (entry,) = folder.glob("*.o")
    intact = entry.read_bytes()
    entry.write_bytes(intact[:-1] + b"!")
    assert ep.report(session(network(1, 8))).claim.claimed == 6
    assert entry.read_bytes() == intact


@pytest.mark.parametrize("groups", [{"n6": 1}, {"n0": 2}, {"n0": 0}, {"n-1": 1}])
def test_an_entry_that_does_not_fit_its_graph_is_written_anew(
    groups: dict[str, int], folder: Path
) -> None:
    """C code reads the groups: none is believed."""
    session(network(1, 8))
    (entry,) = folder.glob("*.o")
    store = cache.ObjectCache(folder)
    facts = json.loads(store.get(entry.stem) or b"")[1]
    store.put(entry.stem, json.dumps([groups, facts]).encode())
    assert ep.report(session(network(1, 8))).claim.claimed == 6
    assert json.loads(store.get(entry.stem) or b"")[0] == {f"n{i}": 1 for i in range(6)}


def test_a_session_keeps_its_claims_in_the_folder_of_its_options(
    folder: Path, tmp_path: Path
) -> None:
    """The option holds for the whole process; the fixture takes it back."""
    session(network(1, 8), cache_folder=str(tmp_path / "other"))
    assert not folder.exists() and list((tmp_path / "other" / "claims").glob("*.o"))

"""Claims on disk: which nodes of a graph quantglow compiles is found once, not in each process.

``$QUANTGLOW_CACHE_DIR/claims`` follows the rules of the cache of kernels: entries are named by a
hash of all that they depend on, checked when read, and removed when all together are too large.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path

import quantglow
from quantglow.codegen.llvm.cache import ObjectCache, cache_folder
from quantglow.ep.claiming import claim_nodes
from quantglow.ep.graphs import read_model
from quantglow.ep.interface import CModel
from quantglow.ep.reports import Claim
from quantglow.version import __version__

CODE = ("ep", "importer", "ir")
"""Folders of the code that decides which nodes are claimed."""

DAMAGED = (ValueError, KeyError, TypeError, AttributeError)
"""Errors of reading an entry of another version."""


def claim_graph(model: CModel, count: int) -> tuple[dict[int, int], Claim]:
    """The groups of a graph's nodes by position, as ``claim_nodes`` has them by name; from the disk
    if an earlier process has asked the same.  ``count``: of nodes, which the plug-in calls by their
    positions.

    Raises ``ModelError``.
    """
    store, name = ObjectCache(cache_folder("claims")), _name_of(model)
    entry = store.get(name)
    if entry is not None:
        try:
            groups, facts = json.loads(entry)
            claim = Claim(**{**facts, "reasons": tuple(facts["reasons"])})
            return _by_position(groups, count, claim.groups), claim
        except DAMAGED:
            pass  # it is written anew
    groups, claim = claim_nodes(read_model(model, is_kept=False))
    store.put(name, json.dumps([groups, asdict(claim)]).encode())
    return _by_position(groups, count, claim.groups), claim


def _by_position(groups: Mapping[str, int], count: int, most: int) -> dict[int, int]:
    """The groups by the positions in the names of nodes.  Raises ``ValueError`` for others."""
    numbers = {int(name.removeprefix("n")): number for name, number in groups.items()}
    if not all(0 <= position < count for position in numbers):
        raise ValueError("a claim is for another graph")
    if not all(isinstance(number, int) and 0 < number <= most for number in numbers.values()):
        raise ValueError("a claim has other groups")
    return numbers


def _name_of(model: CModel) -> str:
    """The hash of a graph with its weights, and of the version of quantglow."""
    digest = hashlib.sha256(_version())
    digest.update((ctypes.c_char * model.nbytes).from_address(model.model))
    for weight in model.weights[: model.weight_count]:
        digest.update(weight.name + b"\0")
        if weight.nbytes:
            digest.update((ctypes.c_char * weight.nbytes).from_address(weight.data))
    return digest.hexdigest()


@cache
def _version() -> bytes:
    """The version; of one under development, the dates of its files, too."""
    if ".dev" not in __version__:
        return __version__.encode()
    root = Path(quantglow.__file__).parent
    files = sorted(path for folder in CODE for path in (root / folder).rglob("*.py"))
    dates = [(str(path), path.stat().st_mtime_ns) for path in files]
    return repr((__version__, dates)).encode()

"""The archive of a saved model: its members, their names, sizes and hashes, and the manifest."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import os
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from quantglow.types import Array

FORMAT = "quantglow-model"
VERSION, FREE_VERSION, TAIL_VERSION, CASE_VERSION, SHARED_VERSION = 1, 2, 3, 4, 5
MANIFEST, GRAPH, REPORT = "manifest.json", "graph.txt", "report.json"
FREE, SOURCE = "free.json", "source.onnx"
TAIL, TAIL_TEXT = "tail.onnx", "tail.json"
MAX_TEXT_NBYTES = 256 << 20
"""Longer texts are refused unread."""


def number_of(array: Array, stored: dict[bytes, int]) -> int:
    """The number of an array among those that are stored; it is added if it is new."""
    return stored.setdefault(npy(array), len(stored))


def groups_in(manifest: Mapping[str, Any]) -> list[list[str]]:
    """The names of the Constants of each graph."""
    return [manifest["constants"], *manifest.get("cases", [])]


def numbers_in(manifest: Mapping[str, Any]) -> list[list[int]]:
    """For each graph the numbers of its Constants' arrays.  Raises ``ValueError``."""
    sizes = list(map(len, groups_in(manifest)))
    if manifest["version"] < SHARED_VERSION:
        ends = list(itertools.accumulate(sizes))
        return [list(range(end - size, end)) for end, size in zip(ends, sizes, strict=True)]
    numbers = [list(map(int, group)) for group in manifest["arrays"]]
    if list(map(len, numbers)) != sizes:
        raise ValueError("the manifest does not give each constant an array")
    return numbers


def scales_in(manifest: Mapping[str, Any]) -> list[int]:
    """The numbers of the arrays that are scales of channels."""
    return list(map(int, manifest["scales"])) if manifest["version"] >= SHARED_VERSION else []


def array_numbers(manifest: Mapping[str, Any]) -> set[int]:
    """The numbers of all arrays."""
    return {*itertools.chain.from_iterable(numbers_in(manifest)), *scales_in(manifest)}


def check_members(archive: zipfile.ZipFile) -> None:
    """Raise ``ValueError`` on members that are compressed, encrypted, there twice, or that share
    bytes of the file: what is read is no more than what is stored.
    """
    names = [info.filename for info in archive.infolist()]
    if len(set(names)) != len(names):
        raise ValueError("a member occurs twice")
    for info in archive.infolist():
        stored = info.compress_type == zipfile.ZIP_STORED and info.compress_size == info.file_size
        if not stored or info.flag_bits & 1:
            raise ValueError(f"member {info.filename!r} is compressed or encrypted")
    if sum(info.file_size for info in archive.infolist()) > nbytes_of(archive):
        raise ValueError("members overlap")


def nbytes_of(archive: zipfile.ZipFile) -> int:
    """The size of the file."""
    assert archive.fp is not None, "the archive is open"
    return archive.fp.seek(0, os.SEEK_END)


def check_manifest(manifest: Any, archive: zipfile.ZipFile) -> None:
    """Raise ``ValueError`` unless the manifest is whole, of a known version, and lists all
    members.
    """
    members = manifest["members"]
    if manifest["format"] != FORMAT or manifest["version"] not in (
        version_of(members),
        SHARED_VERSION,
    ):
        raise ValueError(f"format {manifest['format']!r}, version {manifest['version']!r}")
    if manifest["sha256"] != digest_of(manifest):
        raise ValueError("the checksum of the manifest does not fit its content")
    expected = {REPORT, *map(case_member, range(len(groups_in(manifest))))}
    expected.update(map(member_of, array_numbers(manifest)))
    for kind in ({FREE, SOURCE}, {TAIL, TAIL_TEXT}):
        if not kind.isdisjoint(members):
            expected |= kind
    if members.keys() != expected:
        raise ValueError("the manifest does not list the members of a model")
    if set(archive.namelist()) != expected | {MANIFEST}:
        odd = sorted(set(archive.namelist()) ^ (expected | {MANIFEST}))
        raise ValueError(f"members missing or unknown: {odd[:5]}")


def version_of(members: Mapping[str, object]) -> int:
    """The oldest version that has such members; those of version 5 may be the same."""
    if case_member(1) in members:
        return CASE_VERSION
    return TAIL_VERSION if TAIL in members else FREE_VERSION if FREE in members else VERSION


def checked(archive: zipfile.ZipFile, manifest: Mapping[str, Any], name: str) -> bytes:
    """The bytes of a member, equal in size and hash to what the manifest says."""
    data = archive.read(name)
    if described(data) != manifest["members"][name]:
        raise ValueError(f"the checksum of {name!r} does not fit its content")
    return data


def text_of(archive: zipfile.ZipFile, name: str) -> str:
    if archive.getinfo(name).file_size > MAX_TEXT_NBYTES:
        raise ValueError(f"{name} is larger than {MAX_TEXT_NBYTES} bytes")
    return archive.read(name).decode()


def array_of(archive: zipfile.ZipFile, manifest: Mapping[str, Any], index: int) -> Array:
    data = io.BytesIO(checked(archive, manifest, member_of(index)))
    array: Array = np.lib.format.read_array(data, allow_pickle=False)
    return array


def npy(array: Array) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.asarray(array, order="C"), allow_pickle=False)
    return buffer.getvalue()


def case_member(number: int) -> str:
    """The member that holds the text of graph number ``number``."""
    return GRAPH if number == 0 else f"cases/{number}.txt"


def member_of(index: int) -> str:
    """The member that holds constant number ``index``."""
    return f"constants/{index}.npy"


def described(data: bytes) -> dict[str, Any]:
    return {"nbytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def digest_of(manifest: Mapping[str, Any]) -> str:
    """SHA-256 of the manifest without its own hash."""
    rest = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()

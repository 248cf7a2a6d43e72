"""The archive of a saved model: its members, their names, sizes and hashes, and the manifest."""

from __future__ import annotations

import hashlib
import itertools
import json
import zipfile
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from quantglow.runtime.saved.members import Allowance, pieces_in, read_member
from quantglow.runtime.saved.stored_arrays import PACKED, ArrayForms, from_npy, member_name
from quantglow.support.arrays import Array
from quantglow.support.pages import (
    Content,
    Data,
    is_worth_paging,
    iterate_pieces,
    page,
    page_pieces,
)

FORMAT = "quantglow-model"
VERSION, FREE_VERSION, TAIL_VERSION, CASE_VERSION = 1, 2, 3, 4
SHARED_VERSION, PACKED_VERSION, GENERAL_VERSION, REST_VERSION, CODE_VERSION = 5, 6, 7, 8, 9
BODY_VERSION, TAIL_WEIGHTS_VERSION, LATE_VERSION, LOOPS_VERSION = 10, 11, 12, 13
OPAQUE_VERSION = 14
MANIFEST, GRAPH, REPORT = "manifest.json", "graph.txt", "report.json"
FREE, SOURCE = "free.json", "source.onnx"
GENERAL = "general"
"""The entry of the manifest and of free.json about graphs for all shapes."""
TAIL, TAIL_TEXT, REST, BODY = "tail.onnx", "tail.json", "rest.qgm", "body.qgm"
TAIL_WEIGHTS = "tail_weights.json"
BODIES = "bodies"
"""The entry of the manifest with the names of the loops whose bodies are int8."""
CODE, CODE_TEXT = "code.bin", "code.json"
MAX_TEXT_NBYTES = 256 << 20
"""Maximum size of a text, in bytes; larger ones are refused unread."""


def groups_in(manifest: Mapping[str, Any]) -> list[list[str]]:
    """Names of the Constants of each graph."""
    return [manifest["constants"], *manifest.get("cases", []), *manifest.get(GENERAL, [])]


def members_of_graphs(manifest: Mapping[str, Any]) -> list[str]:
    """The members that hold the texts of ``groups_in``."""
    cases, general = (len(manifest.get(key, [])) for key in ("cases", GENERAL))
    return [*map(case_member, range(1 + cases)), *map(general_member, range(general))]


def numbers_in(manifest: Mapping[str, Any]) -> list[list[int]]:
    """Numbers of the arrays of each graph's Constants.  Raises ``ValueError``."""
    sizes = list(map(len, groups_in(manifest)))
    if manifest["version"] < SHARED_VERSION:
        ends = list(itertools.accumulate(sizes))
        return [list(range(end - size, end)) for end, size in zip(ends, sizes, strict=True)]
    numbers = [list(map(int, group)) for group in manifest["arrays"]]
    if list(map(len, numbers)) != sizes:
        raise ValueError("the manifest does not give each constant an array")
    return numbers


def scales_in(manifest: Mapping[str, Any]) -> list[int]:
    """Numbers of the arrays that are scales of channels."""
    return list(map(int, manifest["scales"])) if manifest["version"] >= SHARED_VERSION else []


def _forms_in(manifest: Mapping[str, Any]) -> ArrayForms:
    """The forms of its arrays.  Raises ``KeyError``, ``TypeError`` or ``ValueError``."""
    return ArrayForms.of(manifest) if manifest["version"] >= PACKED_VERSION else ArrayForms()


def _array_numbers(manifest: Mapping[str, Any]) -> set[int]:
    """Numbers of all arrays."""
    return {*itertools.chain.from_iterable(numbers_in(manifest)), *scales_in(manifest)}


def check_manifest(manifest: Any, archive: zipfile.ZipFile) -> None:
    """Raise ``ValueError`` unless the manifest is whole, of a known version, and lists all
    members.
    """
    members = manifest["members"]
    if manifest["format"] != FORMAT or manifest["version"] not in (
        _archive_version(members),
        SHARED_VERSION,
        PACKED_VERSION,
        newest_version(members),
        LATE_VERSION,
        LOOPS_VERSION,
        OPAQUE_VERSION,
    ):
        raise ValueError(f"format {manifest['format']!r}, version {manifest['version']!r}")
    if manifest["sha256"] != manifest_digest(manifest):
        raise ValueError("the checksum of the manifest does not fit its content")
    expected = {REPORT, *members_of_graphs(manifest)}
    expected |= _forms_in(manifest).members(_array_numbers(manifest))
    for kind in ({FREE, SOURCE}, {TAIL, TAIL_TEXT}, {CODE, CODE_TEXT}):
        if not kind.isdisjoint(members):
            expected |= kind
    expected |= set(map(body_member, range(len(manifest.get(BODIES, [])))))
    if TAIL in members:
        expected |= {REST, BODY, TAIL_WEIGHTS} & members.keys()
    if members.keys() != expected:
        raise ValueError("the manifest does not list the members of a model")
    if set(archive.namelist()) != expected | {MANIFEST}:
        odd = sorted(set(archive.namelist()) ^ (expected | {MANIFEST}))
        raise ValueError(f"members missing or unknown: {odd[:5]}")


def newest_version(
    members: Collection[str], *, is_late: bool = False, has_opaque: bool = False
) -> int:
    """The version that is written for such members; ``is_late``: the graph is of one sample,
    ``has_opaque``: it has opaque values."""
    if has_opaque:
        return OPAQUE_VERSION
    if body_member(0) in members:
        return LOOPS_VERSION
    if is_late:
        return LATE_VERSION
    if TAIL_WEIGHTS in members:
        return TAIL_WEIGHTS_VERSION
    if BODY in members:
        return BODY_VERSION
    if CODE in members:
        return CODE_VERSION
    return REST_VERSION if REST in members else GENERAL_VERSION


def manifest_identity(manifest: Mapping[str, Any]) -> str:
    """SHA-256 of all that a model is, whatever code its file includes."""
    members = {k: v for k, v in manifest["members"].items() if k not in (CODE, CODE_TEXT)}
    left_out = ("version", "quantglow", "sha256")
    content = {key: value for key, value in manifest.items() if key not in left_out}
    return hashlib.sha256(
        json.dumps({**content, "members": members}, sort_keys=True).encode()
    ).hexdigest()


def _archive_version(members: Mapping[str, object]) -> int:
    """The oldest version with such members; the members of versions 5 to 7 may be the same."""
    if case_member(1) in members:
        return CASE_VERSION
    return TAIL_VERSION if TAIL in members else FREE_VERSION if FREE in members else VERSION


def check(archive: zipfile.ZipFile, manifest: Mapping[str, Any], name: str) -> bytes:
    """The bytes of a member, checked against the size and hash in the manifest."""
    data = read_member(archive, name)
    _check_described(describe(data), manifest, name)
    return data


def _check_described(entry: Mapping[str, Any], manifest: Mapping[str, Any], name: str) -> None:
    """Raise ``ValueError`` unless the manifest describes a member so."""
    if entry != manifest["members"][name]:
        raise ValueError(f"the checksum of {name!r} does not fit its content")


def check_in_pages(archive: zipfile.ZipFile, manifest: Mapping[str, Any], name: str) -> Data:
    """The same bytes as ``check`` gives, in pages if that is worth it and there is room."""
    digest = hashlib.sha256()

    def read() -> Iterator[Data]:
        for piece in pieces_in(archive, name):
            digest.update(piece)
            yield piece

    is_worth_it = is_worth_paging([archive.getinfo(name).file_size])
    pages = page_pieces(read()) if is_worth_it else None
    if pages is None:
        return check(archive, manifest, name)
    _check_described(_description(len(pages), digest.hexdigest()), manifest, name)
    return pages


def read_text(archive: zipfile.ZipFile, name: str) -> str:
    if archive.getinfo(name).file_size > MAX_TEXT_NBYTES:
        raise ValueError(f"{name} is larger than {MAX_TEXT_NBYTES} bytes")
    return read_member(archive, name).decode()


def arrays_in(
    archive: zipfile.ZipFile, manifest: Mapping[str, Any], allowance: Allowance
) -> dict[int, Array]:
    """The arrays of a file by number; large ones in pages, one after the other."""
    forms = _forms_in(manifest)
    allowance.spend(forms.made_nbytes)
    small = forms.unpacked(check(archive, manifest, PACKED) if forms.packed else b"")
    numbers = sorted(forms.stored(_array_numbers(manifest)) - small.keys())

    def read() -> Iterator[Array]:
        for number in numbers:
            yield forms.widen(number, from_npy(check(archive, manifest, member_name(number))))

    sizes = (archive.getinfo(member_name(number)).file_size for number in numbers)
    pages = page(read()) if is_worth_paging(sizes) else None
    wide = {number: forms.widen(number, array) for number, array in small.items()}
    wide |= zip(numbers, read() if pages is None else pages, strict=True)
    return forms.arrays(wide)


def case_member(number: int) -> str:
    """The member that holds the text of graph number ``number``."""
    return GRAPH if number == 0 else f"cases/{number}.txt"


def body_member(number: int) -> str:
    """The member that holds the file of a loop's body."""
    return f"{BODIES}/{number}.qgm"


def general_member(number: int) -> str:
    """The member that holds the text of a graph for all shapes."""
    return f"general/{number}.txt"


def describe(data: Content) -> dict[str, Any]:
    digest = hashlib.sha256()
    for piece in iterate_pieces(data):
        digest.update(piece)
    return _description(len(data), digest.hexdigest())


def _description(nbytes: int, sha256: str) -> dict[str, Any]:
    """The entry of a member in the manifest."""
    return {"nbytes": nbytes, "sha256": sha256}


def manifest_digest(manifest: Mapping[str, Any]) -> str:
    """SHA-256 of the manifest without its own hash."""
    content = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

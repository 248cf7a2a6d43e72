"""Saved models: a ``.qgm`` file is an uncompressed zip that numpy and a text editor can read.

::

    manifest.json     format and package versions, SHA-256 and size of every member, of itself too
    graph.txt         the graph as ``print(graph)`` shows it
    report.json       the report of the compilation
    constants/0.npy   the array of the first Constant of the graph, and so on

A model that leaves dimensions free has two more (version 2); its graph is the one for the shapes
it was compiled for first::

    free.json         what it takes and gives, and the decisions of the quantizer by value name
    source.onnx       the ONNX model, to be imported at other shapes; free.json says which of its
                      weights are constants of the graph, or codes

Where values of its inputs decide what is computed and it was quantized for several of them, their
graphs follow (version 4)::

    cases/1.txt       the graph for other values; its constants come after those of the first

A model that is compiled only up to where its shapes stop being known (version 3) has, too::

    tail.onnx         the rest of it, for onnxruntime
    tail.json         the outputs of both parts together, and why the rest is not compiled

No machine code, no pickle: loading compiles again, on any processor.  Nothing is trusted: members
are not extracted, none may be compressed (so that a small file cannot become a large one), and
every byte is checked against its hash before it is parsed.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from quantglow.errors import FileFormatError, QuantglowError
from quantglow.files import DAMAGED_CONTENT, cause, writing
from quantglow.graph.graph import Graph
from quantglow.graph.text import constants_of, parse_graph, print_graph
from quantglow.types import Array
from quantglow.version import __version__

FORMAT = "quantglow-model"
VERSION, FREE_VERSION, TAIL_VERSION, CASE_VERSION = 1, 2, 3, 4
MANIFEST, GRAPH, REPORT = "manifest.json", "graph.txt", "report.json"
FREE, SOURCE = "free.json", "source.onnx"
TAIL, TAIL_TEXT = "tail.onnx", "tail.json"
MAX_TEXT_NBYTES = 256 << 20
"""Longer texts are refused unread."""


@dataclass(frozen=True)
class Tail:
    """The ONNX model that runs behind what is compiled."""

    model: bytes
    output_names: tuple[str, ...]
    reasons: tuple[str, ...]

    def members(self) -> dict[str, bytes]:
        """How it is stored."""
        text = {"output_names": self.output_names, "reasons": self.reasons}
        return {TAIL: self.model, TAIL_TEXT: json.dumps(text).encode()}

    @staticmethod
    def of(model: bytes, text: bytes) -> Tail:
        """From what ``members`` gave.  Raises one of ``DAMAGED_CONTENT``."""
        found = json.loads(text)
        names, reasons = (tuple(map(str, found[key])) for key in ("output_names", "reasons"))
        return Tail(model, names, reasons)


@dataclass(frozen=True)
class SavedModel:
    """What a file holds; ``free`` and ``source`` if the model leaves dimensions free, ``tail`` if
    it is not compiled to its end.  ``cases``: int8 graphs for other deciding values.
    """

    graph: Graph
    report: dict[str, Any]
    free: dict[str, Any] | None = None
    source: bytes = b""
    tail: Tail | None = None
    cases: tuple[Graph, ...] = ()


@dataclass(frozen=True)
class Freedom:
    """What a model with free dimensions adds to a file, or one of several cases."""

    free: Mapping[str, Any]
    source: bytes
    cases: tuple[Graph, ...] = ()


def save(
    path: str | os.PathLike[str],
    graph: Graph,
    report: Mapping[str, Any],
    freedom: Freedom | None = None,
    tail: Tail | None = None,
) -> None:
    """Write a ``.qgm`` file; an existing file is replaced at once or not at all."""
    graphs = (graph, *(freedom.cases if freedom else ()))
    constants = [constants_of(each) for each in graphs]
    members = {case_member(i): print_graph(each).encode() for i, each in enumerate(graphs)}
    members[REPORT] = json.dumps(report).encode()
    arrays = enumerate(array for found in constants for array in found.values())
    members.update((member_of(i), npy(array)) for i, array in arrays)
    if freedom is not None:
        members |= {FREE: json.dumps(freedom.free).encode(), SOURCE: freedom.source}
    if tail is not None:
        members |= tail.members()
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "version": version_of(members),
        "quantglow": __version__,
        "constants": list(constants[0]),
        "cases": [list(found) for found in constants[1:]],
        "members": {name: described(data) for name, data in members.items()},
    }
    manifest["sha256"] = digest_of(manifest)
    with writing(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        archive.writestr(MANIFEST, json.dumps(manifest, indent=1))
        for name, data in members.items():
            archive.writestr(name, data)


def load(path: str | os.PathLike[str]) -> SavedModel:
    """Read what ``save`` wrote.  Raises ``FileFormatError``."""
    try:
        file = open(path, "rb")  # noqa: SIM115 - closed below; its own errors are other ones
    except OSError as error:
        raise FileFormatError(
            f"cannot read {os.fspath(path)!r}: {cause(error)}. "
            "Remedy: give the path of a .qgm file that a compiled model's save wrote."
        ) from error
    try:
        with file, zipfile.ZipFile(file) as archive:
            return read(archive)
    except (OSError, *DAMAGED_CONTENT, QuantglowError) as error:
        raise FileFormatError(
            f"{os.fspath(path)!r} is not a model saved by quantglow (up to version "
            f"{CASE_VERSION}), or it is truncated or altered: {error}. "
            "Remedy: save the model again, or copy it again; ONNX files are for quantglow.compile."
        ) from error


def read(archive: zipfile.ZipFile) -> SavedModel:
    """The model in an open archive.  Raises one of ``DAMAGED_CONTENT`` or a ``QuantglowError``."""
    check_members(archive)
    manifest = json.loads(text_of(archive, MANIFEST))
    check_manifest(manifest, archive)
    graph, *cases = (graph_of(archive, manifest, i) for i in range(1 + len(cases_in(manifest))))
    report = json.loads(checked(archive, manifest, REPORT))
    saved = SavedModel(graph, report, cases=tuple(cases))
    if FREE in manifest["members"]:
        free = json.loads(checked(archive, manifest, FREE))
        saved = replace(saved, free=free, source=checked(archive, manifest, SOURCE))
    if TAIL in manifest["members"]:
        parts = (checked(archive, manifest, name) for name in (TAIL, TAIL_TEXT))
        saved = replace(saved, tail=Tail.of(*parts))
    return saved


def cases_in(manifest: Mapping[str, Any]) -> list[list[str]]:
    """The names of the constants of the graphs behind the first."""
    return list(manifest.get("cases", []))


def graph_of(archive: zipfile.ZipFile, manifest: Mapping[str, Any], number: int) -> Graph:
    """Graph number ``number`` of a file."""
    groups = [manifest["constants"], *cases_in(manifest)]
    first, names = sum(map(len, groups[:number])), groups[number]
    constants = {name: array_of(archive, manifest, first + i) for i, name in enumerate(names)}
    graph = parse_graph(checked(archive, manifest, case_member(number)).decode(), constants)
    graph.verify()
    if list(constants_of(graph)) != names:
        raise ValueError("its constants are not those of the graph")
    return graph


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
    if manifest["format"] != FORMAT or manifest["version"] != version_of(members):
        raise ValueError(f"format {manifest['format']!r}, version {manifest['version']!r}")
    if manifest["sha256"] != digest_of(manifest):
        raise ValueError("the checksum of the manifest does not fit its content")
    groups = [manifest["constants"], *cases_in(manifest)]
    expected = {REPORT, *map(case_member, range(len(groups)))}
    expected.update(map(member_of, range(sum(map(len, groups)))))
    for kind in ({FREE, SOURCE}, {TAIL, TAIL_TEXT}):
        if not kind.isdisjoint(members):
            expected |= kind
    if members.keys() != expected:
        raise ValueError("the manifest does not list the members of a model")
    if set(archive.namelist()) != expected | {MANIFEST}:
        odd = sorted(set(archive.namelist()) ^ (expected | {MANIFEST}))
        raise ValueError(f"members missing or unknown: {odd[:5]}")


def version_of(members: Mapping[str, object]) -> int:
    """The oldest version that has such members."""
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

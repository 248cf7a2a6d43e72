"""Saved models: a ``.qgm`` file is a zip archive of texts, arrays and an ONNX model.

::

    manifest.json     format and package versions, SHA-256 and size of every member, of itself too
    graph.txt         the graph as ``print(graph)`` shows it
    report.json       the report of the compilation
    constants/0.npy   the array of the first Constant of the graph, and so on

A model with free dimensions has two more (version 2); its graph has the shapes that it was compiled
for first::

    free.json         its inputs and outputs, and the decisions of the quantizer by value name
    source.onnx       the ONNX model, to be imported at other shapes; free.json lists its weights
                      that are constants of the graph, or codes

If values of its inputs decide shapes or branches and it was quantized for several of them, their
graphs follow (version 4)::

    cases/1.txt       the graph for other values; its constants come after those of the first

A model whose shapes are known in its first part only (version 3, written until November 2026) also
has::

    tail.onnx         the rest of it, for onnxruntime
    tail.json         the outputs of both parts, and the reasons why the rest is not compiled

Version 5 has each array once: steps of a recurrence and the cases of a model read the same weights.
The manifest has the array of each Constant, and lists the arrays that are scales of channels, which
the texts of graphs refer to.  Older versions have an array for each Constant and the scales in the
text.

Version 6 is smaller: members are compressed if that pays (``members``), and arrays are written in
fewer bytes (``stored_arrays``), small ones together::

    constants/packed.bin    their elements; the manifest has their numbers, types and shapes

Version 7 has graphs for all shapes at which their conditions hold (``symbolic_graphs``); free.json
has the symbols of their inputs and the conditions::

    general/0.txt     a graph whose sizes are expressions of symbols

Version 8 has what is int8 behind the first nodes of the tail, which decide shapes; tail.json has
the names of values that the tail computes::

    rest.qgm          a file like this one

Version 9 may include machine code for some processors, if it was asked for (``machine_code``)::

    code.json         targets, versions, names and sizes of its entries
    code.bin          the entries

It is used where the caller of ``load`` trusts the file; else, and on other processors, loading
compiles again.

Version 10 has the int8 body of a loop that the tail begins with::

    body.qgm          a file like this one

Version 11 has weights of the tail once, where files in it have them (``tail_weights``)::

    tail_weights.json places of these weights

Version 12 is of models in which nodes decide sizes, as free.json says: the graph is that of one
sample, for the weights that layers read as integers, and no program.

Version 13 has the int8 bodies of loops of such models; the manifest has the names of these.  The
graph has neither the model of such a loop nor its weights, which the ONNX model has::

    bodies/0.qgm      a file like this one

Version 14 has values in its graph that only other runtimes compute with; free.json tells what
becomes of results with late shapes (``LateResults``).

There is no pickle.  Files are not trusted: members are not extracted, their
expansion is limited, and every byte is checked against its hash before it is parsed.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import quantglow.ir.ops  # noqa: F401 - registers the operators that graphs name
from quantglow.ir.graph.attributes import ArrayMark
from quantglow.ir.graph.family import LateResults, constant_arrays, in_pages, with_arrays
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, check_stored
from quantglow.ir.graph.text import parse_graph, print_without_scales, text_constants, text_scales
from quantglow.ir.types import DType
from quantglow.runtime.programs.symbolic_graphs import SymbolicGraph
from quantglow.runtime.saved.archives import (
    BODIES,
    BODY,
    CODE,
    CODE_TEXT,
    FORMAT,
    FREE,
    GENERAL,
    MANIFEST,
    OPAQUE_VERSION,
    REPORT,
    REST,
    SOURCE,
    TAIL,
    TAIL_TEXT,
    TAIL_WEIGHTS,
    arrays_in,
    body_member,
    case_member,
    check,
    check_in_pages,
    check_manifest,
    describe,
    general_member,
    groups_in,
    manifest_digest,
    manifest_identity,
    members_of_graphs,
    newest_version,
    numbers_in,
    read_text,
    scales_in,
)
from quantglow.runtime.saved.machine_code import IncludedCode
from quantglow.runtime.saved.members import Allowance, check_members, write_members
from quantglow.runtime.saved.stored_arrays import ArrayStore
from quantglow.support.arrays import Array
from quantglow.support.classes import cached_property
from quantglow.support.errors import FileFormatError, QuantglowError
from quantglow.support.files import DAMAGED_CONTENT, cause, writing
from quantglow.support.pages import Content, Data
from quantglow.version import __version__

StoredText = tuple[str, Mapping[str, Array], Mapping[ArrayMark, Array]]
"""The text of a graph, its constants by name, and its scales."""

LATE = "late"
"""Entry of free.json about results whose shapes are known late."""

_LATE_ENTRIES = {
    LateResults.REFUSED: None,
    LateResults.SYMBOLIC: True,
    LateResults.OPAQUE: "opaque",
}


@dataclass(frozen=True)
class SavedTail:
    """The ONNX model that runs behind the compiled part, in a file of an earlier release.

    ``late``: the values that it computes and that can be compiled behind its first nodes;
    ``suffix``: the file of an int8 model of these; ``body``: that of the body of a loop before
    them.  ``weights``: places of weights that ``model`` has no data of.
    ``allowance``: what is left for the members of ``suffix`` and ``body``; None: their sizes say
    it.
    """

    model: bytes
    output_names: tuple[str, ...]
    reasons: tuple[str, ...]
    late: tuple[str, ...] = ()
    suffix: bytes = b""
    body: bytes = b""
    weights: Mapping[str, Any] = field(default_factory=dict)
    allowance: Allowance | None = field(default=None, compare=False)

    @cached_property
    def files(self) -> Mapping[str, SavedModel]:
        """The contents of its files, by member.  Raises ``FileFormatError``."""
        files = {REST: self.suffix, BODY: self.body}
        return {n: contents_in(data, n, self.allowance) for n, data in files.items() if data}

    @cached_property
    def constants(self) -> tuple[Constant, ...]:
        """Constants of the main graphs of its files, and those of the tails in these; names begin
        with those of the files.  Raises one of ``DAMAGED_CONTENT`` or a ``QuantglowError``.
        """
        return tuple(self._constants())

    def _constants(self) -> Iterator[Constant]:
        for member, saved in self.files.items():
            inner = () if saved.tail is None else (*saved.tail.constants, *saved.tail.tensors())
            for node in (*saved.graph.nodes, *inner):
                if isinstance(node, Constant):
                    yield replace(node, name=f"{member}/{node.name}")

    def tensors(self) -> Iterator[Constant]:
        """Weights that its model has itself."""
        # Only here: a process without tails needs no onnx.
        from quantglow.importer.onnx import own_constants

        for node in own_constants(self.model, self.weights):
            yield replace(node, name=f"{TAIL}/{node.name}")

    @staticmethod
    def of(
        model: bytes, text: bytes, suffix: bytes = b"", body: bytes = b"", places: bytes = b""
    ) -> SavedTail:
        """The tail from the contents of its members.  Raises one of ``DAMAGED_CONTENT``."""
        facts = json.loads(text)
        names, reasons = (tuple(map(str, facts[key])) for key in ("output_names", "reasons"))
        late, weights = tuple(map(str, facts.get("late", ()))), json.loads(places or b"{}")
        if not isinstance(weights, dict):
            raise ValueError("the places of the tail's weights are not listed by name")
        return SavedTail(model, names, reasons, late, suffix, body, weights)


@dataclass(frozen=True)
class SavedModel:
    """The contents of a file.

    ``free`` and ``source`` are set if the model has free dimensions, ``tail`` if only its first
    part is compiled.  ``cases`` are int8 graphs for other deciding values, ``general`` graphs for
    all shapes where their conditions hold.  ``digest`` is a hash of all contents but ``code``,
    which is read if it was asked for.  ``bodies``: the files of int8 bodies of loops by the names
    of these; ``allowance``: what is left for their members, None: their sizes say it.
    """

    graph: Graph
    report: dict[str, Any]
    free: dict[str, Any] | None = None
    source: Data = b""
    tail: SavedTail | None = None
    cases: tuple[Graph, ...] = ()
    general: tuple[SymbolicGraph, ...] = ()
    digest: str = ""
    code: IncludedCode | None = None
    bodies: Mapping[str, Data] = field(default_factory=dict)
    allowance: Allowance | None = field(default=None, compare=False)

    @cached_property
    def loops(self) -> Mapping[str, SavedModel]:
        """The contents of the bodies of its loops, by the names of these.  Raises
        ``FileFormatError``."""
        return {
            name: contents_in(bytes(data), f"the body of {name}", self.allowance)
            for name, data in self.bodies.items()
        }

    @property
    def late_results(self) -> LateResults:
        """The treatment of late results when it is imported.  Raises ``FileFormatError``."""
        entry = (self.free or {}).get(LATE)
        for late_results, known in _LATE_ENTRIES.items():
            if entry is known or (entry == known and isinstance(entry, str)):
                return late_results
        raise FileFormatError(
            f"{entry!r:.60} says nothing of late results. Remedy: save the model again."
        )

    @property
    def is_late(self) -> bool:
        """Whether nodes of the model decide sizes: its graph is that of one sample, no program."""
        return self.late_results is LateResults.SYMBOLIC

    def in_pages(self) -> SavedModel:
        """The same contents, large ones in pages."""
        arrays = [array for graph in (self.graph, *self.cases) for array in constant_arrays(graph)]
        arrays += [array for each in self.general for array in each.constants.values()]
        distinct = list({id(array): array for array in arrays}.values())
        moved = dict(zip(map(id, distinct), in_pages(distinct), strict=True))
        return replace(
            self,
            graph=with_arrays(self.graph, moved),
            cases=tuple(with_arrays(graph, moved) for graph in self.cases),
            general=tuple(each.with_arrays(moved) for each in self.general),
        )


def _no_further_check(saved: SavedModel) -> None:
    """Accept a model that needs no more checks than those of ``read``."""


@dataclass(frozen=True)
class Freedom:
    """The additional contents of a file for a model with free dimensions, or several cases.

    ``check`` reopens a model that was read back, as loading does, and raises the same errors.
    ``bodies``: the files of int8 bodies of loops by the names of these.
    """

    free: Mapping[str, Any]
    source: Content
    cases: tuple[Graph, ...] = ()
    check: Callable[[SavedModel], object] = _no_further_check
    general: tuple[SymbolicGraph, ...] = ()
    bodies: Mapping[str, Data] = field(default_factory=dict)


def late_entry(late_results: LateResults) -> dict[str, Any]:
    """The entry of free.json for what becomes of late results."""
    entry = _LATE_ENTRIES[late_results]
    return {} if entry is None else {LATE: entry}


def save(
    path: str | os.PathLike[str],
    graph: Graph,
    report: Mapping[str, Any],
    freedom: Freedom | None = None,
    code: IncludedCode | None = None,
) -> None:
    """Write a ``.qgm`` file; an existing file is replaced at once or not at all.

    The file is read back first.  Raises ``FileFormatError``.
    """
    manifest, members = contents(graph, report, freedom, code)
    text = json.dumps(manifest, indent=1).encode()
    with writing(path) as temporary:
        write_members(temporary, {MANIFEST: text, **members})
        _check_written(temporary, path, manifest["sha256"], freedom)


def contents(
    graph: Graph,
    report: Mapping[str, Any],
    freedom: Freedom | None,
    code: IncludedCode | None,
) -> tuple[dict[str, Any], dict[str, Content]]:
    """The manifest of a file and its other members."""
    graphs = (graph, *(freedom.cases if freedom else ()))
    general = freedom.general if freedom else ()
    constants = [*map(text_constants, graphs), *(each.constants for each in general)]
    read = [*map(text_scales, graphs), *(each.scales for each in general)]
    store = ArrayStore()
    numbers = [[store.number_of(array) for array in arrays.values()] for arrays in constants]
    scales = sorted({store.number_of(array) for arrays in read for array in arrays.values()})
    texts = enumerate(map(print_without_scales, graphs))
    members: dict[str, Content] = {case_member(i): text.encode() for i, text in texts}
    members |= {general_member(i): each.text.encode() for i, each in enumerate(general)}
    members |= {REPORT: json.dumps(report).encode(), **store.members()}
    if freedom is not None:
        free = {**freedom.free, GENERAL: [each.to_json() for each in general]}
        members |= {FREE: json.dumps(free).encode(), SOURCE: freedom.source}
        members |= {body_member(i): data for i, data in enumerate(freedom.bodies.values())}
    if code is not None:
        members |= code.members()
    is_late = freedom is not None and freedom.free.get(LATE) is True
    has_opaque = freedom is not None and freedom.free.get(LATE) == _LATE_ENTRIES[LateResults.OPAQUE]
    has_opaque |= any(node.type.dtype is DType.OPAQUE for node in graph.nodes)
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "version": newest_version(members, is_late=is_late, has_opaque=has_opaque),
        "quantglow": __version__,
        "constants": list(constants[0]),
        "cases": [list(arrays) for arrays in constants[1 : len(graphs)]],
        GENERAL: [list(arrays) for arrays in constants[len(graphs) :]],
        "arrays": numbers,
        "scales": scales,
        **store.manifest(),
        "members": {name: describe(data) for name, data in members.items()},
    }
    if freedom is not None and freedom.bodies:
        manifest[BODIES] = list(freedom.bodies)
    manifest["sha256"] = manifest_digest(manifest)
    return manifest, members


def _check_written(
    written: Path, path: str | os.PathLike[str], sha256: str, freedom: Freedom | None
) -> None:
    """Load the file written for ``path``, up to machine code.

    Raises ``FileFormatError`` unless it contains the model of this manifest.
    """
    try:
        with zipfile.ZipFile(written) as archive:
            saved = read(archive, Allowance.of(archive), with_code=True)
            if json.loads(read_text(archive, MANIFEST))["sha256"] != sha256:
                raise ValueError("the manifest is another one")
        for each in saved.general:
            each.at(each.hints)
        saved.loops  # noqa: B018 - reads all files in it
        if freedom is not None:
            freedom.check(saved)
    except (*DAMAGED_CONTENT, QuantglowError) as error:
        raise FileFormatError(
            f"the model was not saved as {os.fspath(path)!r}: it could not be loaded again from "
            f"what was written: {error}. Remedy: save it again, on another disk; if that fails "
            "too, quantglow is at fault: report it with the model."
        ) from error


def load(path: str | os.PathLike[str], *, with_code: bool = False) -> SavedModel:
    """Read a file of ``save``, and the code that it includes.  Raises ``FileFormatError``."""
    if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
        raise FileFormatError(
            f"{os.fspath(path)!r} is a device or a pipe. Remedy: give the path of a .qgm file."
        )
    try:
        file = open(path, "rb")  # noqa: SIM115 - closed below; its own errors are other ones
    except OSError as error:
        raise FileFormatError(
            f"cannot read {os.fspath(path)!r}: {cause(error)}. "
            "Remedy: give the path of a .qgm file that a compiled model's save wrote."
        ) from error
    try:
        with file, zipfile.ZipFile(file) as archive:
            return read(archive, Allowance.of(archive), with_code=with_code).in_pages()
    except (OSError, *DAMAGED_CONTENT, QuantglowError) as error:
        raise FileFormatError(
            f"{os.fspath(path)!r} is not a model saved by quantglow (up to version "
            f"{OPAQUE_VERSION}), or it is truncated or altered: {error}. "
            "Remedy: save the model again, or copy it again; ONNX files are for quantglow.compile."
        ) from error


def contents_in(data: bytes, name: str, allowance: Allowance | None = None) -> SavedModel:
    """The model in a file inside of another one.  Raises ``FileFormatError``."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            allowance = allowance or Allowance.of(archive)
            allowance.open_file()
            return read(archive, allowance).in_pages()
    except (OSError, *DAMAGED_CONTENT, QuantglowError) as error:
        raise FileFormatError(
            f"the file {name!r} in it is damaged: {error}. Remedy: save the model again."
        ) from error


def read(archive: zipfile.ZipFile, allowance: Allowance, *, with_code: bool = False) -> SavedModel:
    """The model in an open archive.  Raises one of ``DAMAGED_CONTENT`` or a ``QuantglowError``."""
    check_members(archive, allowance)
    manifest = json.loads(read_text(archive, MANIFEST))
    check_manifest(manifest, archive)
    graphs, general = read_texts(archive, manifest, allowance)
    graph, *cases = (graph_from(*stored) for stored in graphs)
    report = json.loads(check(archive, manifest, REPORT))
    saved = SavedModel(graph, report, cases=tuple(cases), digest=manifest_identity(manifest))
    if FREE in manifest["members"]:
        free = json.loads(check(archive, manifest, FREE))
        saved = replace(saved, free=free, source=check_in_pages(archive, manifest, SOURCE))
        saved = replace(saved, general=tuple(_general_from(free, general)))
    names = list(map(str, manifest.get(BODIES, [])))
    if len(set(names)) < len(names):
        raise ValueError("a loop has two bodies")
    bodies = {n: check(archive, manifest, body_member(i)) for i, n in enumerate(names)}
    saved = replace(saved, bodies=bodies, allowance=allowance)
    if TAIL in manifest["members"]:
        members = manifest["members"]
        model, text = (check(archive, manifest, name) for name in (TAIL, TAIL_TEXT))
        parts = (REST, BODY, TAIL_WEIGHTS)
        files = (check(archive, manifest, n) if n in members else b"" for n in parts)
        tail = replace(SavedTail.of(model, text, *files), allowance=allowance)
        saved = replace(saved, tail=tail)
    if with_code and CODE in manifest["members"]:
        text, content = (check(archive, manifest, name) for name in (CODE_TEXT, CODE))
        saved = replace(saved, code=IncludedCode.of(text, content))
    return saved


def read_texts(
    archive: zipfile.ZipFile, manifest: Mapping[str, Any], allowance: Allowance
) -> tuple[list[StoredText], list[StoredText]]:
    """The graphs of a file, and those for all shapes."""
    arrays = arrays_in(archive, manifest, allowance)
    scales = {ArrayMark.of(arrays[number]): arrays[number] for number in scales_in(manifest)}
    members = members_of_graphs(manifest)
    texts: list[StoredText] = []
    for member, names, numbers in zip(
        members, groups_in(manifest), numbers_in(manifest), strict=True
    ):
        text = check(archive, manifest, member).decode()
        constants = {name: arrays[i] for name, i in zip(names, numbers, strict=True)}
        texts.append((text, constants, scales))
    count = len(members) - len(manifest.get(GENERAL, []))
    return texts[:count], texts[count:]


def _general_from(free: Mapping[str, Any], texts: Sequence[StoredText]) -> Iterator[SymbolicGraph]:
    """The graphs for all shapes.  Raises one of ``DAMAGED_CONTENT`` or a ``QuantglowError``."""
    for entry, stored in zip(free.get(GENERAL, []), texts, strict=True):
        yield SymbolicGraph.from_json(entry, *stored)


def graph_from(
    text: str, constants: Mapping[str, Array], scales: Mapping[ArrayMark, Array]
) -> Graph:
    """A graph, verified.  Raises ``ValueError`` or a ``QuantglowError``."""
    graph = parse_graph(text, constants, scales)
    check_stored(graph.every_node())
    graph.verify()
    if list(text_constants(graph)) != list(constants):
        raise ValueError("its constants are not those of the graph")
    return graph

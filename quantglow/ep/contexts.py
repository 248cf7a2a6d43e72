"""Models of fused nodes as code that the plug-in runs without Python: EPContext nodes of ONNX.

A context has words of 64 bits, little-endian, that tell of each combination of input shapes, and a
shared library with a function for each (``context.c`` reads them)::

    "QGEPCTX1", an id of 32 digits, the machine in 64 bytes
    number of combinations, and of each:
        bytes and alignment of the arena
        number of inputs, then of outputs, and of each of these:
            position among those of the node, ONNX type, rank, dims
    bytes of the library, the library

The library has code for all levels of the processor's family.  It is a program: the plug-in loads
one that it has a copy of in the user's cache, or that an option declares to be trusted.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx

from quantglow.codegen.llvm.cache import ObjectCache, cache_folder
from quantglow.codegen.llvm.targets import own_choice
from quantglow.export.bundle import BundleCode, BundledModel, build_contents
from quantglow.export.bundle.constants import Placement
from quantglow.export.bundle.contents import Contents
from quantglow.export.bundle.exporter import build_code, check_own, is_integer
from quantglow.export.bundle.linking import link_shared
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.signature import Shapes, Signature
from quantglow.ir.program.layout import ALIGNMENT
from quantglow.ir.program.program import View
from quantglow.runtime.compiled import CompiledModel
from quantglow.support import debug
from quantglow.support.errors import BackendError, OptionError
from quantglow.support.files import writing

MAGIC = b"QGEPCTX1"

ID_NBYTES = 32
"""Digits of the id."""

MACHINE_NBYTES = 64
"""Room for the name of the machine, with a 0 at its end."""

MOST_COPIES_NBYTES = 8 * 2**30
"""Maximum size of all copies of contexts together, in bytes."""

ENDING = ".qgctx"
"""End of the names of files beside models."""


def context_of(model: CompiledModel | None, shapes: Sequence[Shapes], machine: str) -> bytes:
    """The code of a model for some combinations of input shapes; for those that it fixes where none
    are given.  ``machine``: as the plug-in calls it.

    Raises ``QuantglowError`` with a remedy where such code cannot be made.
    """
    if model is None:
        raise BackendError(
            "quantglow compiles nothing of this part of the model. Remedy: leave ep.context_enable "
            "out."
        )
    signature = model.specialisations.signature
    _check_plain(signature)
    target = own_choice()
    graphs = [_graph_at(model, each) for each in shapes or [{}]]
    parts = [_part(graph, f"qg{number}", target) for number, graph in enumerate(graphs)]
    codes = [code for part in parts for code in part.contents.codes]
    library = link_shared(codes, parts[0].contents.target, "libqg.so")
    words = [len(parts)]
    for part in parts:
        words += [part.contents.program.arena_nbytes, ALIGNMENT]
        words += _end_words(part.code.base.inputs, [port.name for port in signature.inputs])
        words += _end_words(part.code.base.outputs, [port.name for port in signature.outputs])
    words.append(len(library))
    tail = machine.encode().ljust(MACHINE_NBYTES, b"\0")
    tail += struct.pack(f"<{len(words)}q", *words) + library
    return MAGIC + hashlib.sha256(tail).hexdigest()[:ID_NBYTES].encode() + tail


@dataclass(frozen=True, eq=False)
class _Part:
    """The code for one combination of input shapes."""

    contents: Contents
    code: BundleCode


def _part(graph: Graph, name: str, target: str) -> _Part:
    check_own(graph)
    code = build_code(graph, target)
    model = BundledModel(name, graph.source_hash, is_integer(graph))
    return _Part(build_contents(model, code, Placement.OBJECT), code)


def _check_plain(signature: Signature) -> None:
    """Raise ``BackendError`` for inputs and outputs that code ahead of time has in other types."""
    for port in signature.ports:
        if port.declared:
            raise BackendError(
                f"{port.name!r} is {port.onnx_type}, which code ahead of time has as float32. "
                "Remedy: leave ep.context_enable out, or convert it to float32 in the model."
            )


def _graph_at(model: CompiledModel, shapes: Shapes) -> Graph:
    """The graph at some input shapes.  Raises ``OptionError`` where free ones are not given."""
    ports = model.specialisations.signature.inputs
    if unknown := [port.name for port in ports if port.is_free and port.name not in shapes]:
        raise OptionError(
            f"code ahead of time is for shapes that are known, and {', '.join(unknown)} has free "
            "dimensions. Remedy: ep.quantglowexecutionprovider.shapes="
            f"{','.join(f'{name}:1x3x224x224' for name in unknown)}, or several combinations with "
            "a semicolon between them."
        )
    fixed = {port.name: port.default or () for port in ports if not port.is_free}
    return model.specialisations.graph_for({**fixed, **shapes})


def _end_words(ends: Iterable[tuple[str, View]], names: Sequence[str]) -> Iterator[int]:
    """The words of inputs or outputs, which have these names in the order of the node."""
    views = list(ends)
    yield len(views)
    for name, view in views:
        shape = view.type.fixed_shape
        onnx_type = onnx.helper.np_dtype_to_tensor_dtype(view.type.dtype.numpy)
        yield from (names.index(name), int(onnx_type), len(shape), *shape)


def remember_context(context: bytes) -> None:
    """Keep a copy by which the plug-in knows that this user made a context on this machine."""
    store = ObjectCache(cache_folder("contexts"), MOST_COPIES_NBYTES)
    store.put(_name(context), context)
    if not store.has(_name(context)):
        debug.log(1, "the cache has no copy of a stored model: loading it needs trust_code=1")


def _name(context: bytes) -> str:
    """The id of a context: a hash of what comes behind it."""
    return context[len(MAGIC) : len(MAGIC) + ID_NBYTES].decode()


def write_beside(context: bytes, model: str) -> str:
    """Write a context beside a model that is about to be written; the name of its file.

    Raises ``FileFormatError``, and ``OptionError`` where the model is no file.
    """
    if not model:
        raise OptionError(
            "ep.context_embed_mode=0 writes files beside the model, whose path is not known. "
            "Remedy: give ep.context_file_path, or ep.context_embed_mode=1."
        )
    path = Path(model)
    name = f"{path.stem}_{_name(context)[:8]}{ENDING}"
    with writing(path.with_name(name)) as temporary:
        temporary.write_bytes(context)
    return name

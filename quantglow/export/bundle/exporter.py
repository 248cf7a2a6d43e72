"""Exports graphs as bundles: options, names, targets, and the code of a graph at each shape.

The name of a bundle is that of a target, of a library and of a header, ``NAME.h``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, count

from quantglow.codegen.llvm.emission import emit_program
from quantglow.codegen.llvm.emitted import EmittedProgram
from quantglow.codegen.llvm.isa.target import Target
from quantglow.codegen.llvm.targets import ALL, level_choice, level_target, resolve
from quantglow.export.bundle import (
    BundleCode,
    BundledModel,
    BundleLimits,
    Library,
    build_contents,
    write_bundle,
)
from quantglow.export.bundle.border import (
    Bundle,
    CallerSegment,
    split_graph,
    with_output_names,
)
from quantglow.export.bundle.c_files import check_pool
from quantglow.export.bundle.constants import Placement
from quantglow.export.bundle.contents import Contents, is_identifier
from quantglow.export.bundle.linking import check_shared
from quantglow.export.bundle.writer import check_files
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.kinds import Trait
from quantglow.ir.graph.node import Node
from quantglow.ir.ops import Dequantize, Quantize
from quantglow.ir.ops.external import External
from quantglow.memory.planning import plan_program
from quantglow.memory.plans import FAST, MEMORY, SCHEDULES, PlannedProgram
from quantglow.memory.unwritten import unwritten_blocks
from quantglow.quantization.converter import with_integer_inputs, with_integer_outputs
from quantglow.support.arguments import choice, flag, instance, integer
from quantglow.support.errors import BackendError, OptionError

TARGETS = {"all", "clean", "depend", "edit_cache", "help", "install", "package", "test"}
"""Targets that CMake has."""

LIBRARIES = {"c", "dl", "m", "pthread", "rt"}

C99 = """assert complex ctype errno fenv float inttypes iso646 limits locale math setjmp signal
stdarg stdbool stddef stdint stdio stdlib string tgmath time wchar wctype"""
C11 = "stdalign stdatomic stdnoreturn threads uchar"
C23 = "stdbit stdckdint"
POSIX = """aio cpio devctl dirent dlfcn endian fcntl fmtmsg fnmatch ftw glob grp iconv langinfo
libgen libintl monetary mqueue ndbm netdb nl_types poll pthread pwd regex sched search semaphore
spawn strings stropts syslog tar termios trace ulimit unistd utime utmpx wordexp"""
"""Headers from POSIX.1-2001 to 2024 that lie in no folder."""

HEADERS = {name for standard in (C99, C11, C23, POSIX) for name in standard.split()}
TAKEN_NAMES = TARGETS | LIBRARIES | HEADERS
"""In lower case: file systems may not tell ``Float.h`` from ``float.h``."""


def _check_name(name: str) -> None:
    """Raise ``OptionError`` for a name that cannot begin symbols of C, or that others have."""
    if not is_identifier(name):
        raise OptionError(
            f"name={name!r} is no identifier of C. Remedy: a letter, then letters, digits and _"
        )
    if name.lower() in TAKEN_NAMES:
        raise OptionError(
            f"name={name!r} is a target of CMake, a library or a header of C. Remedy: another name"
        )


@dataclass(frozen=True, kw_only=True)
class BundleOptions:
    """The options of ``CompiledModel.export_bundle``, as a user gave them."""

    name: str = "model"
    target: str = "native"
    weights: str = "object"
    quantize_input: bool = False
    quantize_output: bool = False
    library: str = "object"
    max_flash: int | None = None
    max_ram: int | None = None
    schedule: str | None = None
    threads: bool = False
    partition: bool = False

    @property
    def placement(self) -> Placement:
        """The place of the constants.  Raises ``OptionError``."""
        return Placement(choice("weights", self.weights, list(Placement)))

    @property
    def kind(self) -> Library:
        """Whether there are files for loaders.  Raises ``OptionError``."""
        return Library(choice("library", self.library, list(Library)))

    def check(self, folder: str | os.PathLike[str]) -> BundleLimits:
        """The limits.  Raises ``OptionError`` or ``BackendError`` for what fails whatever the model
        is."""
        _check_name(instance("name", self.name, str, "an identifier of C"))
        check_files(folder)
        targets = _parse_targets(self.target)
        if self.kind is Library.SHARED:
            check_shared(targets[-1], self.placement)
        if flag("threads", self.threads):
            check_pool(targets[-1])
        most = {"max_flash": self.max_flash, "max_ram": self.max_ram}
        return BundleLimits(
            *(None if n is None else integer(name, n, 1) for name, n in most.items())
        )


def export_bundle(graph: Graph, folder: str | os.PathLike[str], options: BundleOptions) -> None:
    """Write the bundle of a graph.  Raises ``QuantglowError``."""
    limits = options.check(folder)
    if flag("quantize_input", options.quantize_input):
        graph = _with_quantized_inputs(graph)
    if flag("quantize_output", options.quantize_output):
        graph = _with_quantized_outputs(graph)
    segments: tuple[Graph | CallerSegment, ...] = (graph,)
    if flag("partition", options.partition) and _external_nodes(graph):
        graph = with_output_names(graph)
        segments = split_graph(graph)
    else:
        check_own(graph)
    results = tuple((name, node.name) for name, node in graph.outputs)
    bundle = Bundle(options.name, tuple(_compile_segments(segments, options)), results)
    write_bundle(folder, bundle, options.kind, limits)


def _compile_segments(
    segments: Iterable[Graph | CallerSegment], options: BundleOptions
) -> Iterator[Contents | CallerSegment]:
    """The segments with code: functions ``NAME``, ``NAME_2``, …  Raises ``BackendError``."""
    names = chain([options.name], (f"{options.name}_{number}" for number in count(2)))
    for segment in segments:
        if isinstance(segment, CallerSegment):
            yield segment
            continue
        model = BundledModel(next(names), segment.source_hash, is_integer(segment))
        code = build_code(segment, options.target, options.schedule)
        contents = build_contents(model, code, options.placement)
        yield replace(contents, has_pool=options.threads)


def is_integer(graph: Graph) -> bool:
    """Whether all operators compute with integers, apart from rounding and converting back."""
    return all(map(_is_integer, graph.compute_nodes()))


def _is_integer(node: Node) -> bool:
    if isinstance(node, Quantize | Dequantize) or node.has(Trait.REARRANGES):
        return True
    floats = any(operand.type.dtype.is_float for operand in node.operands)
    return not floats and not node.bodies and not node.has(Trait.FUNCTION)


def _with_quantized_inputs(graph: Graph) -> Graph:
    """The graph with the integers of its inputs.  Raises ``OptionError`` if all stay float."""
    integer_graph = with_integer_inputs(graph)
    if not any(node.type.quant for node in integer_graph.inputs):
        raise OptionError(
            "quantize_input=True, but no input is rounded first: operators read its floats, or "
            "nothing is int8. Remedy: leave quantize_input out, or quantize these operators."
        )
    return integer_graph


def _with_quantized_outputs(graph: Graph) -> Graph:
    """The graph with the integers of its outputs.  Raises ``OptionError`` if all stay float."""
    integer_graph = with_integer_outputs(graph)
    if not any(node.type.quant for _, node in integer_graph.outputs):
        raise OptionError(
            "quantize_output=True, but no output is made of int8 values. Remedy: quantize with "
            "quantize_output=True, too, which rounds the result of the last layer."
        )
    return integer_graph


def bundle_target(name: str) -> Target:
    """The target of a bundle: a level, ``native`` being that of this processor.

    Raises ``BackendError`` for unknown levels.
    """
    level = resolve("native").name if name == "native" else name
    return level_target(instance("target", level, str, "the name of a target"))


def _parse_targets(name: str) -> tuple[Target, ...]:
    """The targets of a name; ``x86-64:all`` has several.  Raises ``BackendError`` for unknown
    ones."""
    is_choice = instance("target", name, str, "the name of a target").endswith(ALL)
    return level_choice(name)[0] if is_choice else (bundle_target(name),)


def build_code(graph: Graph, target: str, schedule: str | None = None) -> BundleCode:
    """The programs of a graph for a target by name; ``x86-64:all`` has several.

    Raises ``BackendError`` for unknown targets.
    """
    if not instance("target", target, str, "the name of a target").endswith(ALL):
        return BundleCode((_program_for(graph, bundle_target(target), schedule),))
    targets, decision = level_choice(target)
    return BundleCode(tuple(_program_for(graph, target, schedule) for target in targets), decision)


def emit(graph: Graph, target: str, schedule: str | None = None) -> EmittedProgram:
    """The program of a graph for a target by name.  Raises ``BackendError``."""
    check_own(graph)
    return _program_for(graph, bundle_target(target), schedule)


def _program_for(graph: Graph, target: Target, schedule: str | None = None) -> EmittedProgram:
    """The program of a graph for a target."""
    return code_for(plan_program(graph, target, schedule=schedule_for(target, schedule)), target)


def code_for(planned: PlannedProgram, target: Target) -> EmittedProgram:
    """A planned program's code, which clears what its kernels read before it is written."""
    emitted = emit_program(planned.program, planned.plan, target)
    unwritten = unwritten_blocks(planned.program, planned.plan, target.isa.slack_nbytes)
    return replace(emitted, unwritten=unwritten)


def schedule_for(target: Target, schedule: str | None) -> str:
    """The schedule of a bundle: the one asked for, by default that of the target.

    Raises ``OptionError`` for unknown ones.
    """
    if schedule is not None:
        return choice("schedule", schedule, SCHEDULES)
    return MEMORY if target.is_microcontroller else FAST


def _external_nodes(graph: Graph) -> list[External]:
    """The operators that onnxruntime computes."""
    return [node for node in graph.nodes if isinstance(node, External)]


def check_own(graph: Graph) -> None:
    """Raise ``BackendError`` for a graph with operators of onnxruntime."""
    if external := _external_nodes(graph):
        shown = "; ".join(f"{n.name!r} ({n.op_type}): {n.reason}" for n in external)
        raise BackendError(
            f"a bundle cannot run operators of onnxruntime, which computes {shown}. Remedy: "
            "partition=True compiles the rest and leaves them to the caller; or replace them."
        )

"""CompiledModel: a network ready to run, with ``InferenceSession``'s interface."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.signature import Shapes, entering, leaving
from quantglow.runtime.exports.onnx_models import whole_model, write
from quantglow.runtime.programs.answers import Answers
from quantglow.runtime.programs.build import MAX_THREADS, Build
from quantglow.runtime.programs.feeds import TensorInfo, check_feeds, choose_outputs, feeds_by_name
from quantglow.runtime.saved.saving import Freedom, save
from quantglow.runtime.serving.infer_queue import InferQueue
from quantglow.runtime.shapes.free_shapes import FreeShapes
from quantglow.runtime.shapes.specializations import ModelPrograms, served_meanwhile
from quantglow.runtime.states.state import Caches, State, match_caches
from quantglow.runtime.states.state_programs import CachePair, StatePrograms
from quantglow.support.arguments import file_path, flag, integer, items, options_named, strings
from quantglow.support.arguments import shapes as shapes_of
from quantglow.support.arrays import Array
from quantglow.support.classes import OfOneProcess, cached_property
from quantglow.support.errors import BackendError, OptionError
from quantglow.support.pages import release_pages
from quantglow.support.timeline import trace_run
from quantglow.support.views import HasDrawing

if TYPE_CHECKING:  # A process that only loads a program measures nothing.
    from quantglow.evaluation.report import Report
    from quantglow.profiling import Profile

PAIR = 2
"""Batch of a graph in which samples are looked at: an axis of 1 is no batch."""

DEFAULT_CAPACITY = 256
"""Rows of a new state that have memory."""

Contents = tuple[Graph, Mapping[str, Any], Freedom | None]
"""Arguments of ``saving.save``."""


def _save_with_code(
    path: str, contents: Contents, targets: Sequence[str], programs: ModelPrograms
) -> None:
    """Write a file that has the code of its programs for targets."""
    if not targets:
        save(path, *contents)
        return
    # Only here: few processes make code for others.
    from quantglow.runtime.saved.machine_code import check_targets, code_for

    check_targets(targets, programs.compiler)
    if programs.is_empty:
        raise OptionError(
            "include_code: the model leaves dimensions free and was not run, so no program has "
            "code. Remedy: run it, or call warm_up, with the shapes that count."
        )
    with tempfile.TemporaryDirectory(prefix="quantglow-") as folder:
        plain = os.path.join(folder, "model.qgm")
        save(plain, *contents)
        code = code_for(plain, targets, programs.compiler, programs.cases_with_results)
    save(path, *contents, code)


Reporter = Callable[[], "Report"]
"""Function that returns the current report; more is known once a model with free shapes has run."""


@dataclass(frozen=True, eq=False)
class CompiledModel(OfOneProcess, HasDrawing):
    """A network and its machine code.  All methods are thread-safe.

    ``reporter`` makes the report; ``profile`` is the one used for quantization, None for a float
    model or one loaded from a file.

    A model with free dimensions takes inputs of any fitting shape; programs are compiled on first
    use, see ``quantglow.runtime.shapes.specializations``.
    """

    specialisations: ModelPrograms
    reporter: Reporter
    profile: Profile | None = None

    @property
    def report(self) -> Report:
        """The report: cost, accuracy, and operators that run elsewhere.

        If a model is compiled on first use, its figures are those of the program that was compiled
        first; ``programs`` lists all.
        """
        meanwhile = map(served_meanwhile, (calls for calls in self.answers if calls.onnxruntime))
        report = self.reporter().serving((*self.specialisations.served(), *meanwhile))
        return report if self.specialisations.is_empty else report.showing(self.graph)

    @property
    def answers(self) -> tuple[Answers, ...]:
        """The calls at each shape by what answered them, with ``while_compiling="onnxruntime"``;
        else none are counted.  Calls of the parts of a model count, too.
        """
        return tuple(self.specialisations.compiler.answers or ())

    @property
    def graph(self) -> Graph:
        """The graph; with free dimensions, at the shapes that it was compiled for first."""
        return self.specialisations.first.graph

    @property
    def build(self) -> Build:
        """The program of ``graph``."""
        return self.specialisations.first.build

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Array]:
        """The named outputs (None or no name: all, in order) for ``feeds``, input name -> array.

        Arrays have the types that the model declares, as for ``InferenceSession.run``, and lists of
        numbers become such arrays; float16, bfloat16 and float64 are computed as float32.

        Raises ``InputError`` for unknown names, wrong shapes and wrong dtypes.
        """
        ends = self.specialisations.signature
        names = [port.name for port in ends.outputs]
        positions = [names.index(name) for name in choose_outputs(output_names, names)]
        arrays = entering(ends.inputs, check_feeds(feeds, self.get_inputs))
        outputs = leaving(ends.outputs, self.specialisations.at(arrays).run(arrays))
        return [outputs[position] for position in positions]

    def run_async(
        self, feeds: Mapping[str, Any], output_names: Sequence[str] | None = None
    ) -> Future[list[Any]]:
        """A future of ``run(output_names, feeds)``: it runs beside the caller, one call for each
        thread of the model at once.

        The arrays must not change before it is done.  ``quantglow.InferQueue`` has options.
        """
        return self._queue.submit(feeds, output_names)

    @cached_property
    def _queue(self) -> InferQueue:
        # Not this model itself: its threads would keep it alive for ever.
        return InferQueue(replace(self))

    @property
    def num_threads(self) -> int:
        """Maximum number of threads of a call."""
        return self.specialisations.num_threads

    def with_num_threads(self, num_threads: int) -> CompiledModel:
        """The same model for another number of threads; both share constants and kernels."""
        threads = integer("num_threads", num_threads, 1, MAX_THREADS)
        if threads == self.num_threads:
            return self
        return replace(self, specialisations=self.specialisations.on_threads(threads))

    def has_independent_samples(
        self, shapes: Mapping[str, Sequence[int]] | None = None, counts: Iterable[int] = ()
    ) -> bool:
        """Whether axis 0 of all inputs is free and counts samples that do not depend on each
        other, nor on which of ``counts`` is their number, at some input shapes; None: at those
        that came first.
        """
        programs = self.specialisations
        ports = programs.signature.inputs
        if programs.is_empty or any(not p.dims or isinstance(p.dims[0], int) for p in ports):
            return False
        input_shapes = shapes or {node.name: node.type.fixed_shape for node in self.graph.inputs}
        pair = {name: (PAIR, *shape[1:]) for name, shape in input_shapes.items()}
        return isinstance(programs, FreeShapes) and programs.joins_samples(pair, counts)

    def __call__(self, *arrays: Any, **named: Any) -> Array | list[Array]:
        """Outputs for arrays in the order of the inputs, by name, or in one mapping by name; a
        single output is not in a list.
        """
        names = [port.name for port in self.specialisations.signature.inputs]
        outputs = self.run(None, feeds_by_name(names, arrays, named))
        return outputs[0] if len(outputs) == 1 else outputs

    def trace(self, feeds: Mapping[str, Any], path: str | os.PathLike[str]) -> list[Array]:
        """All outputs of a run whose timeline goes to ``path``, see ``quantglow.tracing``.

        A run before it compiles and loads what is missing.
        """
        return trace_run(self, feeds, path)

    def warm_up(
        self, shapes: Iterable[Mapping[str, Sequence[int]]], *, specialised: bool = False
    ) -> None:
        """Compile for input shapes (input name -> shape) ahead of the first call with each.

        One program may serve many shapes.  ``specialised``: compile one for each of these shapes
        now, as happens in the background for a shape that is often used.  Programs stay on disk for
        later processes, too.  Inputs whose values decide shapes or branches have the values of the
        first call.  ``run_async`` runs each call on one thread: an ``InferQueue`` has a method like
        this for such programs.

        Raises ``InputError`` for shapes that the model does not take, ``OptionError`` for others
        than integers.
        """
        at_once = flag("specialised", specialised)
        for entry in items("shapes", shapes, "shapes by name of input"):
            self.specialisations.warm_up(shapes_of("shapes", entry) or {}, at_once)

    def get_inputs(self) -> list[TensorInfo]:
        """Name, shape and type of each input, in order; free dimensions are symbols or None."""
        return list(map(TensorInfo.of, self.specialisations.signature.inputs))

    def get_outputs(self) -> list[TensorInfo]:
        """Name, shape and type of each output, in order."""
        return list(map(TensorInfo.of, self.specialisations.signature.outputs))

    def new_state(
        self,
        batch: int = 1,
        capacity: int = DEFAULT_CAPACITY,
        max_length: int | None = None,
        pairs: Mapping[str, str] | None = None,
    ) -> State:
        """A state for calls of a decoder: its caches stay in memory and grow in place.

        batch        number of sequences
        capacity     rows that have memory; it doubles when they are used up
        max_length   maximum number of rows; None: any
        pairs        inputs that become outputs with more rows, by name; by default those named
                     ``past_key_values…`` and ``present…``

        Raises ``OptionError`` where the model has no such inputs, or no free dimensions.
        """
        programs = self.specialisations
        if not isinstance(programs, FreeShapes):
            raise OptionError("all shapes of the model are fixed. Remedy: keep the past free.")
        cache_pairs = match_caches(programs.signature.inputs, programs.signature.outputs, pairs)
        shared = self._states.setdefault(cache_pairs, StatePrograms(programs, cache_pairs))
        most = None if max_length is None else integer("max_length", max_length, 1)
        rows = integer("capacity", capacity, 1)
        room = max(rows if most is None else min(rows, most), 2)
        ports = {port.name: port for port in programs.signature.inputs}
        caches = Caches(cache_pairs, ports, integer("batch", batch, 1), room, most)
        return State(self, shared, caches)

    @cached_property
    def _states(self) -> dict[tuple[CachePair, ...], StatePrograms]:
        """The programs of states, by their pairs."""
        return {}

    @options_named
    def save(self, path: str | os.PathLike[str], *, include_code: str | Sequence[str] = ()) -> None:
        """Write a ``.qgm`` file for ``quantglow.load``, on any processor.

        A model with free dimensions that was run or calibrated is ready for these shapes when it is
        loaded; else its file has the model only.

        include_code   names of targets whose machine code the file has, too, for this number of
                       threads and the input shapes that came: ``"native"``, for processors equal to
                       this one, or levels such as ``"avx2"``.  ``load(path, code="use")`` runs it
                       without compiling.  The file grows by packed weights and kernels for each.

        Raises ``OptionError``, ``BackendError`` for targets that do not run here.
        """
        graph, freedom = self.specialisations.contents()
        _save_with_code(
            file_path("path", path),
            (graph, self.report.to_json(), freedom),
            strings(include_code, "include_code"),
            self.specialisations,
        )
        release_pages()

    @options_named
    def export_onnx(
        self,
        path: str | os.PathLike[str],
        input_shapes: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        """Write the graph as ONNX; int8 values as QDQ, which onnxruntime runs.

        Free dimensions stay free; ``input_shapes`` fixes them (input name -> shape), and values of
        inputs that decide shapes or branches to those of the first call.  Integers may differ from
        quantglow's by one step where a sum lies on a tie, and later ones with them.  On x86 without
        VNNI onnxruntime saturates sums at 16 bits, unless the session option
        ``session.x64quantprecision`` is ``1``.

        Raises ``ModelError`` if a dimension cannot stay free, or values decide and nothing is
        fixed, ``InputError`` for shapes that the model does not take, and where no shape is known.
        """
        chosen, file = shapes_of("input_shapes", input_shapes), file_path("path", path)
        write(self.to_onnx(chosen), file)

    def to_onnx(self, input_shapes: Shapes | None = None) -> bytes:
        """The model that ``export_onnx`` writes."""
        return whole_model(self.specialisations, input_shapes)

    @options_named
    def export_bundle(
        self,
        folder: str | os.PathLike[str],
        *,
        name: str = "model",
        target: str = "native",
        weights: str = "object",
        input_shapes: Mapping[str, Sequence[int]] | None = None,
        quantize_input: bool = False,
        quantize_output: bool = False,
        library: str = "object",
        max_flash: int | None = None,
        max_ram: int | None = None,
        schedule: str | None = None,
        threads: bool = False,
        partition: bool = False,
    ) -> None:
        """Write a bundle for C programs: an object without libraries, its header, a manifest.

        name             beginning of the names of files and symbols, an identifier of C
        target           a level of any processor, as ``"neon"``; ``"native"``: that of this one;
                         ``"x86-64:all"``, ``"aarch64:all"``: all levels, chosen at every run
                         or, by ``NAME_level`` for ``NAME_run_at``, once
        weights          ``"object"``: in the object; ``"c"``: in a C file; ``"bin"``: in a file
                         that the program loads
        input_shapes     input name -> shape, for free dimensions; default: those of the first call
        quantize_input   inputs are integers, with scales and zero points in the header; those whose
                         floats are read stay float
        quantize_output  outputs are the integers before their conversion to float, if they are
                         converted
        library          ``"shared"``: also ``libNAME.so``, for ctypes, Rust or Go; for ``wasm32``
                         ``NAME.wasm`` and ``NAME.mjs``, for Node and browsers
        max_flash        maximum bytes of code and weights, as a linker of this machine links the
                         example, or else of the objects; nothing is written if they are more
        max_ram          maximum bytes of arena and stack
        schedule         see ``compile``; default: "memory" for microcontrollers, else "fast"
        threads          also ``NAME_pool.h`` and ``NAME_pool.c``: threads that share a run on Linux
        partition        operators that onnxruntime computes, and those whose sizes they decide, are
                         left to the caller: there is a function for each segment around them, and
                         header, example and manifest say what is between

        Inputs and outputs that the model declares as float16 or float64 are float32.

        Raises ``OptionError``, ``BackendError`` for graphs with operators of onnxruntime, unless
        ``partition`` leaves them to the caller, and for bundles larger than ``max_flash`` or
        ``max_ram``, ``InputError`` for shapes that the model does not take, ``FileFormatError``.
        """
        chosen, path = shapes_of("input_shapes", input_shapes), file_path("folder", folder)
        # Imported here because most processes make no bundles.
        from quantglow.export.bundle.exporter import BundleOptions, export_bundle

        graph = self.graph if chosen is None else self.specialisations.graph_for(chosen)
        if not graph.outputs:
            reasons = "; ".join(node.reason for node in self.build.fallback)
            raise BackendError(
                f"onnxruntime runs this model whole, and a bundle has no onnxruntime: {reasons}. "
                "Remedy: cut the model before that, by onnx.utils.extract_model."
            )
        options = BundleOptions(
            name=name,
            target=target,
            weights=weights,
            quantize_input=quantize_input,
            quantize_output=quantize_output,
            library=library,
            max_flash=max_flash,
            max_ram=max_ram,
            schedule=schedule,
            threads=threads,
            partition=partition,
        )
        export_bundle(graph, path, options)

    def __repr__(self) -> str:
        def shown(infos: list[TensorInfo]) -> str:
            return ", ".join(f"{info.name}: {info.type[7:-1]}{info.shape}" for info in infos)

        return (
            f"<CompiledModel ({shown(self.get_inputs())}) -> ({shown(self.get_outputs())}), "
            f"{self.specialisations.target}, {self.specialisations.num_threads} thread(s)>"
        )

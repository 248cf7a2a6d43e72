"""Models that onnxruntime runs as a whole."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from quantglow.ir.graph.signature import Shapes
from quantglow.ort.session import Session, open_session
from quantglow.runtime.compiled import DEFAULT_CAPACITY, Reporter
from quantglow.runtime.exports.onnx_models import write
from quantglow.runtime.programs.answers import Answers
from quantglow.runtime.programs.build import MAX_THREADS
from quantglow.runtime.programs.feeds import TensorInfo, check_feeds, choose_outputs, feeds_by_name
from quantglow.runtime.serving.infer_queue import InferQueue
from quantglow.runtime.states.state import State
from quantglow.support.arguments import file_path, integer, options_named
from quantglow.support.arguments import shapes as shapes_of
from quantglow.support.classes import OfOneProcess, cached_property
from quantglow.support.errors import OptionError
from quantglow.support.timeline import trace_run
from quantglow.support.views import HasDrawing

if TYPE_CHECKING:
    from quantglow.evaluation.report import Report
    from quantglow.profiling import Profile


@dataclass(frozen=True, eq=False)
class FallbackModel(OfOneProcess, HasDrawing):
    """A valid ONNX model that onnxruntime runs: nothing of it can be compiled.

    ``reasons`` name the nodes; ``reporter`` makes the report.  All methods are thread-safe.  Sizes
    of free dimensions may differ from call to call.

    It has the methods of ``CompiledModel``; ``new_state``, ``export_bundle`` and ``save`` raise
    ``OptionError``.  It has no ``graph``, ``build`` and ``specialisations``: nothing is compiled.
    """

    model: bytes
    reasons: tuple[str, ...]
    num_threads: int
    reporter: Reporter

    @property
    def report(self) -> Report:
        """The reasons why nothing is compiled."""
        return self.reporter()

    @property
    def answers(self) -> tuple[Answers, ...]:
        """As ``CompiledModel.answers``; none: onnxruntime answers all calls."""
        return ()

    @property
    def profile(self) -> Profile | None:
        """As ``CompiledModel.profile``; None: nothing is quantized."""
        return None

    @cached_property
    def session(self) -> Session:
        """The session of onnxruntime, loaded on first use."""
        return open_session(self.model, self.num_threads)

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Any]:
        """The outputs, as ``CompiledModel.run``; sequences are lists of arrays."""
        names = choose_outputs(output_names, [output.name for output in self.get_outputs()])
        return self.results(names, check_feeds(feeds, self.get_inputs))

    def results(self, output_names: list[str], feeds: Mapping[str, Any]) -> list[Any]:
        """The named outputs."""
        return self.session.run(feeds, output_names)

    def __call__(self, *arrays: Any, **named: Any) -> Any:
        """Outputs for arrays in the order of the inputs, by name, or in one mapping by name; a
        single output is not in a list.
        """
        names = [info.name for info in self.get_inputs()]
        outputs = self.run(None, feeds_by_name(names, arrays, named))
        return outputs[0] if len(outputs) == 1 else outputs

    def run_async(
        self, feeds: Mapping[str, Any], output_names: Sequence[str] | None = None
    ) -> Future[list[Any]]:
        """A future of ``run(output_names, feeds)``, as ``CompiledModel.run_async``."""
        return self._queue.submit(feeds, output_names)

    @cached_property
    def _queue(self) -> InferQueue:
        # Not this model itself: its threads would keep it alive for ever.
        twin = replace(self)
        vars(twin)["session"] = self.session
        return InferQueue(twin)

    def with_num_threads(self, num_threads: int) -> FallbackModel:
        """The same model for another number of threads."""
        threads = integer("num_threads", num_threads, 1, MAX_THREADS)
        return self if threads == self.num_threads else replace(self, num_threads=threads)

    def has_independent_samples(
        self, shapes: Mapping[str, Sequence[int]] | None = None, counts: Iterable[int] = ()
    ) -> bool:
        """False: samples may depend on each other in operators that onnxruntime runs."""
        return False

    def trace(self, feeds: Mapping[str, Any], path: str | os.PathLike[str]) -> list[Any]:
        """All outputs of a run whose timeline goes to ``path``, as ``CompiledModel.trace``."""
        return trace_run(self, feeds, path)

    def warm_up(
        self, shapes: Iterable[Mapping[str, Sequence[int]]], *, specialised: bool = False
    ) -> None:
        """Load onnxruntime's session, which serves all shapes."""
        self.session  # noqa: B018

    def get_inputs(self) -> list[TensorInfo]:
        """Name, shape and type of each input, in order; free dimensions are names or None."""
        return list(map(TensorInfo.of_node, self.session.inputs))

    def get_outputs(self) -> list[TensorInfo]:
        """Name, shape and type of each output, in order."""
        return list(map(TensorInfo.of_node, self.session.outputs))

    def new_state(
        self,
        batch: int = 1,
        capacity: int = DEFAULT_CAPACITY,
        max_length: int | None = None,
        pairs: Mapping[str, str] | None = None,
    ) -> State:
        """Raise ``OptionError``: onnxruntime keeps no caches between calls."""
        raise OptionError(
            "a state is for models that are compiled whole, and onnxruntime runs operators of this "
            "one. Remedy: feed the caches in every call, or cut the model before these operators."
        )

    @options_named
    def save(self, path: str | os.PathLike[str], *, include_code: str | Sequence[str] = ()) -> None:
        """Raise ``OptionError``: there is no compiled part to save."""
        raise OptionError(
            "nothing of this model is compiled, onnxruntime runs it whole. Remedy: keep the ONNX "
            "file, or write it with export_onnx."
        )

    @options_named
    def export_onnx(
        self,
        path: str | os.PathLike[str],
        input_shapes: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        """Write the original model.  Raises ``OptionError`` for ``input_shapes``."""
        chosen, file = shapes_of("input_shapes", input_shapes), file_path("path", path)
        write(self.to_onnx(chosen), file)

    def to_onnx(self, input_shapes: Shapes | None = None) -> bytes:
        """The model that ``export_onnx`` writes."""
        if input_shapes is not None:
            raise OptionError(
                "input_shapes: nothing of this model is compiled, so the original is written as it "
                "is. Remedy: leave input_shapes out."
            )
        return self.model

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
        """Raise ``OptionError``: a bundle has no onnxruntime."""
        raise OptionError(
            f"a bundle has no onnxruntime, which this model needs: {'; '.join(self.reasons)}. "
            "Remedy: cut the model before that, by onnx.utils.extract_model."
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__}, onnxruntime, {self.num_threads} thread(s)>"

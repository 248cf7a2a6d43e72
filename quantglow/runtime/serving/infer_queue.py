"""InferQueue: one model, used by many callers at once."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from quantglow.runtime.programs.feeds import TensorInfo, check_feeds, check_mapping
from quantglow.runtime.serving.calls import (
    BatchSpeed,
    CallQueue,
    QueueLimits,
    WaitingCall,
    join,
    parts,
    sizes_tried,
)
from quantglow.support.arguments import (
    brief,
    integer,
    items,
    number,
    options_named,
    shapes,
    strings,
)
from quantglow.support.classes import OfOneProcess
from quantglow.support.errors import InputError, OptionError

MAX_STREAMS, MOST_KNOWN = 1024, 4096
"""Maximum number of streams, and of joined sizes that are known to be one graph or not."""
AUTO = "auto"


class Named(Protocol):
    """An output of a model."""

    @property
    def name(self) -> str: ...


@runtime_checkable
class QueuedModel(Protocol):
    """A compiled model as far as a queue needs it."""

    @property
    def num_threads(self) -> int:
        """Maximum number of threads of a call."""

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Any]:
        """The named outputs."""

    def get_inputs(self) -> Sequence[TensorInfo]:
        """The inputs, in order."""

    def get_outputs(self) -> Sequence[Named]:
        """The outputs, in order."""

    def with_num_threads(self, num_threads: int) -> QueuedModel:
        """The same model for another number of threads."""

    def has_independent_samples(
        self, shapes: Mapping[str, Sequence[int]] | None = None, counts: Iterable[int] = ()
    ) -> bool:
        """Whether calls of these shapes (None: of any) may be joined along axis 0, where numbers
        of samples are among ``counts``."""

    def warm_up(
        self, shapes: Iterable[Mapping[str, Sequence[int]]], *, specialised: bool = False
    ) -> None:
        """Compile for input shapes; ``specialised``: a program for each."""


class InferQueue(OfOneProcess):
    """Runs the calls of many callers on several streams: threads that run one inference each.

    ::

        with qg.InferQueue(compiled) as queue:
            futures = [queue.submit({"x": x}) for x in images]
            results = [future.result() for future in futures]

    streams      number of inferences at once; ``"auto"``: one for each thread of the model, so that
                 an inference runs on one thread.  The model's threads are divided among the streams
    max_batch    maximum number of samples in the batch that calls are joined to; 1: none is joined.
                 Sizes are measured while calls run, and the fastest one is taken
    max_delay    seconds that a call may wait for others to join it
    max_waiting  maximum number of calls that wait; a further one raises ``QueueFullError``

    int8 results of joined calls are the integers of single ones; float results may differ by
    rounding.  All methods are thread-safe.  A call that waits is cancelled by ``future.cancel()``.
    A queue that nobody holds ends after the calls that it has.

    Raises ``OptionError`` for options that do not exist, and for ``max_batch`` above 1 where
    samples of a batch depend on each other or their number is fixed.
    """

    @options_named
    def __init__(
        self,
        model: QueuedModel,
        streams: int | str = AUTO,
        *,
        max_batch: int = 1,
        max_delay: float = 0.0,
        max_waiting: int | None = None,
    ) -> None:
        if isinstance(model, type) or not isinstance(model, QueuedModel):
            raise OptionError(f"model must be a compiled model, got {type(model).__name__}")
        limits = QueueLimits(
            _stream_count(streams, model.num_threads),
            integer("max_batch", max_batch, 1),
            seconds("max_delay", max_delay),
            None if max_waiting is None else integer("max_waiting", max_waiting, 1),
        )
        if limits.max_batch > 1 and not model.has_independent_samples():
            raise OptionError(
                f"max_batch={max_batch}: calls cannot be joined, because samples of a batch depend "
                "on each other or on their number, which may be fixed, or the model was not "
                "compiled for any shape yet. Remedy: max_batch=1, or a model with a free batch "
                "that was run or calibrated."
            )
        self.model = model.with_num_threads(max(1, model.num_threads // limits.streams))
        runner = CallRunner(self.model, BatchSpeed())
        self._waiting = CallQueue(limits, runner, runner.speed)
        end = weakref.finalize(self, self._waiting.stop)
        end.atexit = False  # at the end of the process, calls that wait are cancelled

    @property
    def streams(self) -> int:
        """Number of inferences at once."""
        return self._waiting.limits.streams

    def submit(
        self, feeds: Mapping[str, Any], output_names: Sequence[str] | None = None
    ) -> Future[list[Any]]:
        """A future of ``model.run(output_names, feeds)``.

        The arrays must not change before it is done.  Raises ``QueueFullError``, ``QueueError`` for
        a closed queue, ``InputError`` for feeds that are no arrays, and ``OptionError`` for names
        of outputs that are no texts; the future raises all other errors of the call.
        """
        check_mapping(feeds)
        if odd := [name for name in feeds if not isinstance(name, str)]:
            raise InputError(f"names of inputs must be strings, got {brief(odd[0])}")
        arrays = check_feeds(feeds, self.model.get_inputs)
        names = strings(output_names, "output_names") or None
        call = WaitingCall(arrays, names, time.monotonic())
        self._waiting.add(call)
        return call.future

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Any]:
        """``model.run``, in turn with the calls of others."""
        return self.submit(feeds, output_names).result()

    def warm_up(
        self, calls: Iterable[Mapping[str, Sequence[int]]], *, specialised: bool = False
    ) -> None:
        """Compile ahead for ``calls`` (input name -> shape), on the threads of a stream: alone, and
        as the batches that they may be joined to.  ``specialised``: as ``CompiledModel.warm_up``,
        so that nothing is compiled later, while these calls run.

        Raises ``InputError`` for shapes that the model does not take, ``OptionError`` for others
        than integers.
        """
        for call in items("calls", calls, "shapes by name of input"):
            call_shapes = shapes("calls", call) or {}
            shapes_run = _batch_shapes(call_shapes, self._waiting.limits.max_batch)
            self.model.warm_up(shapes_run, specialised=specialised)

    def close(self, cancel: bool = False) -> None:
        """Take no more calls and wait for those that came; ``cancel``: only for those that run.

        A callback of a future, which runs on a stream, does not wait.
        """
        self._waiting.stop(cancel)
        self._waiting.join()

    def __enter__(self) -> InferQueue:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(cancel=kind is not None)

    def __repr__(self) -> str:
        if not hasattr(self, "_waiting"):
            return "<InferQueue, not ready>"  # as tracebacks show it where ``__init__`` raised
        return f"<InferQueue, {self.streams} stream(s), {self.model!r}>"


def _stream_count(streams: object, num_threads: int) -> int:
    """The number of streams.  Raises ``OptionError``."""
    if isinstance(streams, str):
        if streams != AUTO:
            raise OptionError(f"streams must be a number or {AUTO!r}, got {streams!r}")
        return num_threads
    return integer("streams", streams, 1, MAX_STREAMS)


def _batch_shapes(call: Mapping[str, tuple[int, ...]], max_batch: int) -> list[dict[str, Any]]:
    """The shapes at which calls of one shape run: alone and joined."""
    lengths = {shape[0] if shape else None for shape in call.values()}
    alone = lengths.pop() if len(lengths) == 1 else None
    if alone is None:
        return [dict(call)]
    sizes = sizes_tried(range(alone, max(alone, max_batch) + 1, max(alone, 1)))
    return [{name: (size, *shape[1:]) for name, shape in call.items()} for size in sizes]


def seconds(option: str, value: object) -> float:
    """A time that is not negative, in seconds.  Raises ``OptionError``."""
    duration = number(option, value)
    most = threading.TIMEOUT_MAX
    if not 0 <= duration <= most:
        raise OptionError(f"{option} must be seconds from 0 to {most:g}, got {duration:g}")
    return duration


@dataclass
class CallRunner:
    """Runs calls on a model and settles their futures."""

    model: QueuedModel
    speed: BatchSpeed
    _same: dict[tuple[Hashable, frozenset[int]], bool] = field(default_factory=dict)

    def __call__(self, calls: Sequence[WaitingCall]) -> None:
        """Run calls of one kind, as one batch if there are several and they may be joined."""
        if len(calls) > 1 and self.joins(calls[0]) and self.settle_together(calls):
            return
        for call in calls:
            self.settle(call)

    def joins(self, call: WaitingCall) -> bool:
        """Whether calls of a kind may be joined: samples may depend on each other at some shapes
        only."""
        if (verdict := self.speed.joins(call.kind)) is None:
            shapes = {name: array.shape for name, array in call.feeds.items()}
            verdict = self.model.has_independent_samples(shapes)
            self.speed.note(call.kind, verdict)
        return verdict

    def has_same_graph(self, calls: Sequence[WaitingCall]) -> bool:
        """Whether one graph is that of each call and of all as one batch."""
        sizes = [call.samples for call in calls]
        key = calls[0].kind, frozenset([sum(sizes), *sizes])
        if key not in self._same:
            if len(self._same) >= MOST_KNOWN:
                self._same.clear()
            shapes = {name: array.shape for name, array in calls[0].feeds.items()}
            self._same[key] = self.model.has_independent_samples(shapes, key[1])
        return self._same[key]

    def settle(self, call: WaitingCall) -> None:
        """Run one call."""
        start = time.perf_counter()
        try:
            outputs = self.model.run(call.output_names, call.feeds)
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            call.future.set_exception(error)
            return
        self.speed.record(call.kind, call.samples, time.perf_counter() - start)
        call.future.set_result(outputs)

    def settle_together(self, calls: Sequence[WaitingCall]) -> bool:
        """Whether the calls ran as one batch; where one of them is wrong, none is settled."""
        if not self.has_same_graph(calls):
            return False
        start = time.perf_counter()
        try:
            names = [output.name for output in self.model.get_outputs()]
            outputs = dict(zip(names, self.model.run(None, join(calls)), strict=True))
            results = list(parts(outputs, calls))
        except Exception:  # noqa: BLE001 - each call alone raises its own error
            return False
        samples = sum(call.samples for call in calls)
        if any(len(output) != samples for output in outputs.values()):
            return False
        self.speed.record(calls[0].kind, samples, time.perf_counter() - start)
        for call, result in zip(calls, results, strict=True):
            call.future.set_result(result)
        return True

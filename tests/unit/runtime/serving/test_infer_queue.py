"""Calls from many threads get their own results, whatever ends, fails or is cancelled."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import quantglow as qg
from quantglow.memory import planning
from quantglow.runtime.programs.feeds import TensorInfo
from quantglow.runtime.serving import calls as waiting
from quantglow.runtime.serving.calls import BatchSpeed, WaitingCall, parts
from quantglow.runtime.serving.infer_queue import InferQueue
from quantglow.runtime.shapes import general_planning
from tests.support.free_network import image, wide_model
from tests.support.small_network import small_model, small_samples
from tests.unit.importer.onnx.onnx_models import floats, model_of
from tests.unit.runtime.test_fallback import positions

PATIENCE = 30
"""Seconds after which a call counts as hanging."""


@dataclass(frozen=True)
class Output:
    name: str


@dataclass
class Doubling:
    """A model that doubles ``x``.  ``gate``: calls wait for it; ``batches``: lengths that ran."""

    num_threads: int = 1
    gate: threading.Event = field(default_factory=threading.Event)
    begun: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    batches: list[int] = field(default_factory=list)
    seconds: float = 0.0
    siblings: list[int] = field(default_factory=list)
    compiled: list[tuple[Any, bool]] = field(default_factory=list)

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Any]:
        self.begun.release()
        assert self.gate.wait(PATIENCE)
        x = feeds["x"]
        if (x < 0).any():
            raise qg.InputError("x is negative")
        self.batches.append(len(x))
        time.sleep(self.seconds)
        known = {"twice": 2 * x, "thrice": 3 * x}
        return [known[name] for name in output_names or known]

    def get_inputs(self) -> list[TensorInfo]:
        return [TensorInfo("x", ["rows", "columns"], "tensor(int64)")]

    def get_outputs(self) -> list[Output]:
        return [Output("twice"), Output("thrice")]

    def with_num_threads(self, num_threads: int) -> Doubling:
        self.siblings.append(num_threads)
        return self

    def has_independent_samples(
        self, shapes: Mapping[str, Any] | None = None, counts: Iterable[int] = ()
    ) -> bool:
        return True

    def warm_up(self, shapes: Iterable[Any], *, specialised: bool = False) -> None:
        self.compiled += [(expected, specialised) for expected in shapes]


def opened(**options: Any) -> Doubling:
    """A model whose calls do not wait."""
    model = Doubling(**options)
    model.gate.set()
    return model


def feeds(value: int, samples: int = 1) -> dict[str, np.ndarray]:
    return {"x": np.full((samples, 2), value, np.float32)}


def got(future: Future[list[Any]]) -> Any:
    return future.result(PATIENCE)


def test_every_call_gets_its_own_results() -> None:
    with InferQueue(opened(num_threads=3)) as queue:
        futures = [queue.submit(feeds(value)) for value in range(100)]
    assert [got(future)[0][0, 0] for future in futures] == [2 * value for value in range(100)]


def test_outputs_are_those_that_a_call_names() -> None:
    with InferQueue(opened()) as queue:
        (actual,) = queue.run(["thrice"], feeds(1))
    assert actual[0, 0] == 3


@pytest.mark.parametrize(("threads", "streams", "each"), [(4, "auto", 1), (4, 2, 2), (2, 3, 1)])
def test_streams_divide_the_threads(threads: int, streams: int | str, each: int) -> None:
    model = opened(num_threads=threads)
    InferQueue(model, streams)
    assert model.siblings == [each]


def test_as_many_calls_run_at_once_as_there_are_streams() -> None:
    model = Doubling(num_threads=3)
    queue = InferQueue(model)
    for value in range(5):
        queue.submit(feeds(value))
    running = [model.begun.acquire(timeout=PATIENCE) for _ in range(3)]
    more = model.begun.acquire(timeout=0.1)
    model.gate.set()
    queue.close()
    assert (running, more) == ([True] * 3, False)


def test_an_error_reaches_the_caller_that_made_it() -> None:
    with InferQueue(opened()) as queue:
        bad, good = queue.submit(feeds(-1)), queue.submit(feeds(1))
    assert isinstance(bad.exception(PATIENCE), qg.InputError)
    assert got(good)[0][0, 0] == 2


def test_a_wrong_call_does_not_harm_those_joined_to_it() -> None:
    model = Doubling()
    queue = InferQueue(model, max_batch=8)
    first = queue.submit(feeds(0))
    model.begun.acquire(timeout=PATIENCE)
    values = [3, -1, 4]
    futures = [queue.submit(feeds(value)) for value in values]
    model.gate.set()
    queue.close()
    assert got(first)[0][0, 0] == 0
    errors = [type(future.exception(PATIENCE)) for future in futures]
    assert errors == [type(None), qg.InputError, type(None)]
    assert got(futures[2])[0][0, 0] == 8


def test_a_call_that_waits_can_be_cancelled() -> None:
    model = Doubling()
    queue = InferQueue(model)
    running, waits = queue.submit(feeds(1)), queue.submit(feeds(2))
    model.begun.acquire(timeout=PATIENCE)
    assert (waits.cancel(), running.cancel()) == (True, False)
    model.gate.set()
    queue.close()
    assert model.batches == [1]


def test_closing_with_cancel_leaves_no_caller_waiting() -> None:
    model = Doubling()
    queue = InferQueue(model)
    running, *waiting_ones = [queue.submit(feeds(value)) for value in range(4)]
    model.begun.acquire(timeout=PATIENCE)
    threading.Timer(0.05, model.gate.set).start()
    queue.close(cancel=True)
    assert got(running)[0][0, 0] == 0
    assert all(future.cancelled() for future in waiting_ones)
    with pytest.raises(CancelledError):
        waiting_ones[0].result(PATIENCE)


def test_a_block_that_raises_cancels_what_waits() -> None:
    model = Doubling()
    queue = InferQueue(model)
    futures = [queue.submit(feeds(value)) for value in range(3)]
    model.begun.acquire(timeout=PATIENCE)
    threading.Timer(0.05, model.gate.set).start()
    with pytest.raises(KeyError), queue:
        raise KeyError
    assert [future.cancelled() for future in futures] == [False, True, True]


def test_a_closed_queue_refuses() -> None:
    queue = InferQueue(opened())
    queue.close()
    with pytest.raises(qg.QueueError, match="closed"):
        queue.submit(feeds(1))


def test_a_full_queue_refuses_and_keeps_what_it_has() -> None:
    model = Doubling()
    queue = InferQueue(model, max_waiting=2)
    futures = [queue.submit(feeds(0))]
    model.begun.acquire(timeout=PATIENCE)
    futures += [queue.submit(feeds(value)) for value in (1, 2)]
    with pytest.raises(qg.QueueFullError, match="2 calls wait"):
        queue.submit(feeds(3))
    model.gate.set()
    queue.close()
    assert [got(future)[0][0, 0] for future in futures] == [0, 2, 4]


def test_calls_that_were_cancelled_take_no_place() -> None:
    model = Doubling()
    queue = InferQueue(model, max_waiting=1)
    first = queue.submit(feeds(0))
    model.begun.acquire(timeout=PATIENCE)
    assert queue.submit(feeds(1)).cancel()
    last = queue.submit(feeds(2))
    model.gate.set()
    queue.close()
    assert [got(future)[0][0, 0] for future in (first, last)] == [0, 4]


def test_a_stream_without_calls_holds_no_arrays() -> None:
    with InferQueue(opened()) as queue:
        inputs = feeds(1)
        future = queue.submit(inputs)
        arrays = [weakref.ref(inputs["x"]), weakref.ref(got(future)[0])]
        del inputs, future
        deadline = time.monotonic() + PATIENCE
        while any(array() is not None for array in arrays) and time.monotonic() < deadline:
            gc.collect()
        assert [array() for array in arrays] == [None, None]


def test_a_queue_that_nobody_holds_finishes_its_calls_and_ends() -> None:
    model = Doubling()
    futures = [InferQueue(model).submit(feeds(1))]
    gc.collect()
    model.gate.set()
    assert got(futures[0])[0][0, 0] == 2
    names = [t.name for t in threading.enumerate()]
    deadline = time.monotonic() + PATIENCE
    while "quantglow-stream" in names and time.monotonic() < deadline:
        time.sleep(0.01)
        names = [t.name for t in threading.enumerate()]
    assert "quantglow-stream" not in names


def test_a_callback_may_use_the_queue() -> None:
    later: list[Future[list[Any]]] = []
    with InferQueue(opened()) as queue:
        first = queue.submit(feeds(1))
        done = threading.Event()
        first.add_done_callback(lambda f: (later.append(queue.submit(feeds(5))), done.set()))
        assert done.wait(PATIENCE)
    assert got(later[0])[0][0, 0] == 10


def joined_batches(values: Sequence[int], **options: Any) -> tuple[list[int], list[float]]:
    """Lengths of batches, and results, of calls that wait behind one that runs."""
    model = Doubling()
    queue = InferQueue(model, **options)
    first = queue.submit(feeds(0))
    model.begun.acquire(timeout=PATIENCE)
    futures = [queue.submit(feeds(value, samples)) for samples, value in enumerate(values, 1)]
    model.gate.set()
    queue.close()
    got(first)
    for samples, future in enumerate(futures, 1):
        assert [len(array) for array in got(future)] == [samples, samples]
    return model.batches[1:], [float(got(future)[0].mean()) for future in futures]


def test_joined_calls_get_their_own_samples() -> None:
    _, results = joined_batches([5, 6, 7, 8], max_batch=16)
    assert results == [10, 12, 14, 16]


def test_results_of_joined_calls_do_not_keep_each_other() -> None:
    calls = [WaitingCall(feeds(value), None, 0.0) for value in range(2)]
    (ours,), _ = parts({"twice": np.zeros((2, 2), np.float32)}, calls)
    assert ours.base is None


@pytest.mark.parametrize(("names", "count"), [("thrice", 1), (["thrice"], 1), (None, 2)])
def test_calls_that_name_outputs_are_joined(names: Any, count: int) -> None:
    model = Doubling()
    queue = InferQueue(model, max_batch=8)
    first = queue.submit(feeds(0), names)
    model.begun.acquire(timeout=PATIENCE)
    futures = [queue.submit(feeds(value), names) for value in range(40)]
    model.gate.set()
    queue.close()
    assert [len(got(future)) for future in (first, *futures)] == [count] * 41
    assert (sum(model.batches), max(model.batches) > 1) == (41, True)


def test_a_call_keeps_the_names_that_it_was_given() -> None:
    model, names = Doubling(), ["thrice"]
    with InferQueue(model) as queue:
        future = queue.submit(feeds(1), names)
        names.append("twice")
        model.gate.set()
        assert len(got(future)) == 1


def test_no_batch_is_larger_than_allowed() -> None:
    batches, _ = joined_batches(range(1, 9), max_batch=8)
    assert max(batches) <= 8
    assert sum(batches) == sum(range(1, 9))


def test_calls_of_other_shapes_are_not_joined() -> None:
    model = Doubling()
    queue = InferQueue(model, max_batch=8)
    queue.submit(feeds(0))
    model.begun.acquire(timeout=PATIENCE)
    shapes = [(1, 2), (1, 3), (1, 2)]
    futures = [queue.submit({"x": np.ones(shape, np.float32)}) for shape in shapes]
    model.gate.set()
    queue.close()
    assert [got(future)[0].shape for future in futures] == shapes


def test_a_call_waits_for_others_as_long_as_allowed() -> None:
    with InferQueue(opened(), max_batch=8, max_delay=0.1) as queue:
        start = time.monotonic()
        queue.run(None, feeds(1))
        assert time.monotonic() - start >= 0.1


def test_no_call_of_a_full_batch_waits_any_longer() -> None:
    with InferQueue(opened(), max_batch=8, max_delay=10 * PATIENCE) as queue:
        futures = [queue.submit(feeds(value, 2)) for value in range(4)]
        assert [got(future)[0][0, 0] for future in futures] == [0, 2, 4, 6]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"streams": 0}, "streams must be at least 1"),
        ({"streams": "many"}, "streams must be a number or 'auto'"),
        ({"max_batch": 0}, "max_batch must be at least 1"),
        ({"max_delay": -1.0}, "max_delay must be seconds from 0 to"),
        ({"max_delay": float("inf")}, "max_delay must be seconds from 0 to"),
        ({"max_delay": 1e10}, "max_delay must be seconds from 0 to"),
        ({"max_waiting": 0}, "max_waiting must be at least 1"),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(qg.OptionError, match=message):
        InferQueue(opened(), **options)


def test_only_models_are_accepted() -> None:
    with pytest.raises(qg.OptionError, match="model must be a compiled model, got str"):
        InferQueue("model.onnx")  # type: ignore[arg-type]
    with pytest.raises(qg.OptionError, match="model must be a compiled model, got type"):
        InferQueue(Doubling)  # type: ignore[arg-type]


def test_feeds_that_are_no_mapping_are_refused() -> None:
    with InferQueue(opened()) as queue, pytest.raises(qg.InputError, match="feeds must map"):
        queue.submit([1])  # type: ignore[arg-type]


def test_names_that_are_no_text_are_refused_and_harm_no_other_call() -> None:
    with InferQueue(opened(), max_batch=4) as queue:
        with pytest.raises(qg.InputError, match="names of inputs must be strings, got 3"):
            queue.submit({**feeds(1), 3: feeds(1)["x"]})  # type: ignore[dict-item]
        assert got(queue.submit(feeds(2)))[0][0, 0] == 4


def test_an_error_of_the_queue_reaches_a_caller_and_ends_no_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Our own errors, too, leave nobody waiting."""
    model, errors = Doubling(), iter([ZeroDivisionError()])
    queue = InferQueue(model, max_batch=4)
    usual, running = BatchSpeed.best, queue.submit(feeds(0))
    model.begun.acquire(timeout=PATIENCE)

    def best(speed: BatchSpeed, kind: Any, sizes: Sequence[int]) -> int:
        for error in errors:
            raise error
        return usual(speed, kind, sizes)

    monkeypatch.setattr(BatchSpeed, "best", best)
    futures = [queue.submit(feeds(value)) for value in (1, 2, 3)]
    model.gate.set()
    assert got(running)[0][0, 0] == 0
    with pytest.raises(ZeroDivisionError):
        got(futures[0])
    assert [got(future)[0][0, 0] for future in futures[1:]] == [4, 6]
    queue.close()


def forked_result(queue: InferQueue, inherited: Future[list[Any]]) -> bool:
    """Whether a child is told of the call that it lost, and its own call gets its result."""
    lost = isinstance(inherited.exception(PATIENCE), qg.QueueError)
    return lost and queue.run(None, feeds(4))[0][0, 0] == 8


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_is_told_of_lost_calls_and_makes_new_ones() -> None:
    model = Doubling()
    queue = InferQueue(model)
    running = queue.submit(feeds(1))
    model.begun.acquire(timeout=PATIENCE)
    waits = queue.submit(feeds(2))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            model.gate = threading.Event()
            model.gate.set()
            lost = isinstance(running.exception(PATIENCE), qg.QueueError)
            code = 0 if lost and forked_result(queue, waits) else 2
        finally:
            os._exit(code)
    model.gate.set()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (got(running)[0][0, 0], got(waits)[0][0, 0]) == (2, 4)
    queue.close()


BOTH_CLOSE = """
import threading
from tests.unit.runtime.serving.test_infer_queue import PATIENCE, Doubling, InferQueue, feeds
model = Doubling(num_threads=2)
queue = InferQueue(model)
both = threading.Barrier(2)
def close(future):
    both.wait(PATIENCE)
    queue.close()
for future in [queue.submit(feeds(value)) for value in range(2)]:
    future.add_done_callback(close)
for _ in range(2):
    model.begun.acquire()  # a call that waits would be cancelled when the process ends
model.gate.set()
"""

END = """
import time, numpy as np
from tests.unit.runtime.serving.test_infer_queue import Doubling, InferQueue, feeds
model = Doubling(seconds=0.3)
model.gate.set()
queue = InferQueue(model)
futures = [queue.submit(feeds(value)) for value in range(1000)]
"""


@pytest.mark.slow
@pytest.mark.parametrize("script", [END, BOTH_CLOSE], ids=["calls wait", "callbacks close it"])
def test_a_process_ends_while_a_queue_is_in_use(script: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", script], timeout=PATIENCE, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_thread_that_cannot_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(waiting.threading.Thread, "start", refuse)
    queue = InferQueue(opened())
    with pytest.raises(qg.QueueError, match="starts no thread"):
        queue.submit(feeds(1))


@pytest.fixture(scope="module")
def int8() -> qg.CompiledModel:
    """A model of free batch, height and width, in int8."""
    samples = [image((2, 64, 8, 8), seed) for seed in range(4)]
    return qg.quantize_and_compile(
        wide_model(), samples, num_threads=2, progress=False, verify=False
    )


@pytest.mark.slow_variants
@pytest.mark.parametrize("max_batch", [1, 8])
def test_int8_results_are_those_of_single_calls(int8: qg.CompiledModel, max_batch: int) -> None:
    images = [image((1 + seed % 3, 64, 8, 8 + 4 * (seed % 2)), seed) for seed in range(40)]
    expected = [int8.run(None, {"x": x}) for x in images]
    with (
        qg.InferQueue(int8, max_batch=max_batch, max_delay=0.01) as queue,
        ThreadPoolExecutor(4) as pool,
    ):
        actual = list(pool.map(lambda x: queue.run(None, {"x": x}), images))
    for results, reference in zip(actual, expected, strict=True):
        assert [a.tobytes() for a in results] == [a.tobytes() for a in reference]


def test_run_async_gives_what_run_gives(int8: qg.CompiledModel) -> None:
    x = image((2, 64, 8, 8), 9)
    futures = [int8.run_async({"x": x}, ["y"]) for _ in range(8)]
    (expected,) = int8.run(["y"], {"x": x})
    assert all(np.array_equal(got(future)[0], expected) for future in futures)


@pytest.mark.parametrize("model", [small_model, wide_model], ids=["fixed batch", "never run"])
def test_a_model_whose_batch_is_not_known_to_be_free_is_not_joined(
    model: Callable[[], onnx.ModelProto],
) -> None:
    with pytest.raises(qg.OptionError, match="max_batch=4: calls cannot be joined"):
        qg.InferQueue(qg.compile(model(), num_threads=2), max_batch=4)


def rows_model() -> onnx.ModelProto:
    """x [N, T, 8] as rows [N * T, 8], times 2: samples are rows only where T is 1."""
    nodes = [
        onnx.helper.make_node("Reshape", ["x", "sizes"], ["rows"]),
        onnx.helper.make_node("Add", ["rows", "rows"], ["y"]),
    ]
    sizes = numpy_helper.from_array(np.array([-1, 8]), "sizes")
    model = model_of(nodes, {"x": floats(1, 1, 8)}, ["y"], [sizes])
    for axis, name in enumerate("NT"):
        model.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = name
    return model


@pytest.mark.parametrize("length", [1, 3])
def test_calls_are_joined_only_at_shapes_whose_samples_are_independent(length: int) -> None:
    compiled: Any = qg.compile(rows_model(), num_threads=1)
    compiled(floats(1, 1, 8))
    inputs = [floats(1, length, 8) for _ in range(8)]
    with qg.InferQueue(compiled, 1, max_batch=4, max_delay=0.05) as queue:
        for _ in range(3):
            futures = [queue.submit({"x": x}) for x in inputs]
            for x, future in zip(inputs, futures, strict=True):
                np.testing.assert_array_equal(got(future)[0], 2 * x[0])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("is_compiled", [True, False])
def test_run_async_keeps_no_model_alive(is_compiled: bool, threads: int) -> None:
    model = small_model() if is_compiled else positions()[0]
    compiled: Any = qg.compile(model, num_threads=threads)
    inputs = compiled.get_inputs()
    arguments = {
        i.name: np.ones([d if isinstance(d, int) else 1 for d in i.shape], "f") for i in inputs
    }
    got(compiled.run_async(arguments))
    known = weakref.ref(compiled)
    del compiled
    deadline = time.monotonic() + PATIENCE
    while known() is not None and time.monotonic() < deadline:
        gc.collect()
    assert known() is None


def test_samples_that_depend_on_each_other_are_not_joined() -> None:
    nodes = [onnx.helper.make_node("CumSum", ["x", "axis"], ["y"])]
    model = model_of(
        nodes, {"x": floats(1, 4)}, ["y"], [numpy_helper.from_array(np.array(0), "axis")]
    )
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N"
    compiled = qg.compile(model, num_threads=1)
    compiled(floats(3, 4))
    assert not compiled.has_independent_samples()


@pytest.mark.parametrize("threads", [1, 3])
def test_the_number_of_threads_can_be_changed(int8: qg.CompiledModel, threads: int) -> None:
    fixed, x = qg.compile(small_model(), num_threads=2), small_samples(1)[0]
    free = image((2, 64, 8, 8), 5)
    changed = fixed.with_num_threads(threads)
    assert changed.num_threads == threads
    assert all(map(np.array_equal, changed(x), fixed(x)))
    assert np.array_equal(int8.with_num_threads(threads)(free), int8(free))


@pytest.mark.parametrize(
    ("call", "sizes"),
    [
        ({"x": (1, 2), "y": (1,)}, [1, 2, 4]),
        ({"x": (3, 2), "y": (3,)}, [3, 6]),
        ({"x": (9, 2), "y": (9,)}, [9]),
        ({"x": (1, 2), "y": (2,)}, None),
        ({"x": (1, 2), "y": ()}, None),
    ],
)
def test_warming_up_compiles_every_batch_that_calls_may_be_joined_to(
    call: dict[str, tuple[int, ...]], sizes: list[int] | None
) -> None:
    model = opened()
    with InferQueue(model, 1, max_batch=6) as queue:
        queue.warm_up([call], specialised=True)
    batches = [{n: (size, *shape[1:]) for n, shape in call.items()} for size in sizes or ()]
    assert model.compiled == [(shapes, True) for shapes in batches or [call]]


def test_calls_after_warming_up_a_queue_plan_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: Any = qg.compile(wide_model(), num_threads=2)
    compiled.run(None, {"x": image((1, 64, 4, 4))})

    def refused(*arguments: object, **named: object) -> Any:
        raise AssertionError("a call plans a program")

    with InferQueue(compiled, 2, max_batch=4) as queue:
        queue.warm_up([{"x": (1, 64, 4, 4)}], specialised=True)
        for module in (planning, general_planning):
            monkeypatch.setattr(module, "plan_program", refused)
        for size in (1, 2, 4):
            assert len(queue.run(None, {"x": image((size, 64, 4, 4))})[0]) == size


def test_calls_are_not_joined_whose_graph_is_another_one_for_a_sample() -> None:
    """A Squeeze without axes leaves out the batch of one sample, and no larger one."""
    nodes = [
        onnx.helper.make_node("Squeeze", ["x"], ["h"]),
        onnx.helper.make_node("Concat", ["h", "h"], ["c"], axis=1),
        onnx.helper.make_node("Reshape", ["c", "sizes"], ["y"]),
    ]
    sizes = numpy_helper.from_array(np.array([-1, 12]), "sizes")
    model = model_of(nodes, {"x": floats(1, 2, 3)}, ["y"], [sizes])
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N"
    compiled = qg.compile(model, num_threads=1)
    assert isinstance(compiled, qg.CompiledModel)
    x = np.arange(6, dtype=np.float32).reshape(1, 2, 3)
    pair = np.concatenate([x, x + 6])
    alone, together = compiled.run(None, {"x": x})[0], compiled.run(None, {"x": pair})[0]
    assert not np.array_equal(alone[0], together[0])
    with qg.InferQueue(compiled, 1, max_batch=8, max_delay=0.05) as queue:
        for _ in range(3):
            for future in [queue.submit({"x": x}) for _ in range(8)]:
                np.testing.assert_array_equal(future.result()[0], alone)

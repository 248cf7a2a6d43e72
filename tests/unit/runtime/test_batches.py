"""A batch in pieces: the same integers, less memory, and threads that take pieces."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import quantglow as qg
from quantglow.codegen.llvm.targets import resolve
from quantglow.evaluation.call_times import profile_calls
from quantglow.interpreter import interpret
from quantglow.ir import ops
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input
from quantglow.ir.types import TensorType, f32
from quantglow.memory import plans as batches
from quantglow.memory.planning import plan_program
from quantglow.memory.plans import Traffic, pieces_for, shares_evenly
from quantglow.runtime.native import executable as executables
from quantglow.runtime.native.compilation import compile_program
from quantglow.runtime.native.sequences import BatchedExecutable
from quantglow.support.arrays import Array
from quantglow.transforms.split_batch import split_batch
from tests.support.free_network import image, wide_model
from tests.support.harsh import harsh

BATCH = 12
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def however_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads take part in batches of any size."""
    monkeypatch.setattr(executables, "SERIAL_PROGRAM", 0.0)


def constant(*shape: int) -> Constant:
    return Constant(name=f"c{shape}", value=RNG.standard_normal(shape).astype(np.float32))


def images(batch: int = BATCH, size: int = 5) -> Graph:
    """Conv, mean and Gemm; the second output is as large as images, the second input used late."""
    x = Input(name="x", tensor=f32(batch, size, 4, 3))
    late = Input(name="late", tensor=f32(batch, 8))
    conv = ops.Conv(name="c", x=x, w=constant(3, 3, 3, 8), pads=(1, 1, 1, 1), low=0.0)
    mean = ops.Add(
        name="s", x=ops.ReduceMean(name="m", x=conv, axes=(1, 2), keepdims=False), y=late
    )
    return Graph((x, late), (("y", ops.Gemm(name="y", x=mean, w=constant(8, 5))), ("c", conv)))


def feeds_of(graph: Graph, seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {
        node.name: rng.standard_normal(node.type.shape).astype(np.float32) for node in graph.inputs
    }


def int8_images() -> Graph:
    graph = images()
    return qg.quantize(graph, qg.profile(graph, [feeds_of(graph)]))


def cut(graph: Graph, pieces: int, threads: int) -> BatchedExecutable:
    part = split_batch(graph, pieces)
    assert part is not None
    planned = plan_program(part, resolve("native"))
    piece = compile_program(planned.program, planned.plan, resolve("native"), threads)
    inputs = tuple(node.type for node in graph.inputs)
    return BatchedExecutable(piece, pieces, inputs, tuple(node.type for _, node in graph.outputs))


@pytest.mark.parametrize("threads", [1, 2, 3, 40])
@pytest.mark.parametrize("pieces", [2, 3, 4, 12])
def test_pieces_give_the_same_integers(pieces: int, threads: int) -> None:
    graph = int8_images()
    executable = cut(graph, pieces, threads)
    for seed in range(20):
        feeds = feeds_of(graph, seed)
        results = executable.run(feeds)
        for got, want in zip(results, interpret(graph, feeds), strict=True):
            np.testing.assert_array_equal(got, want)


def test_a_tiny_batch_wakes_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = int8_images()
    work = 4 * cut(graph, 4, 1).piece.program.work
    monkeypatch.setattr(executables, "SERIAL_PROGRAM", work + 1)
    feeds = feeds_of(graph)
    executable = cut(graph, 4, 2)
    assert executable.crew == 1
    np.testing.assert_array_equal(executable.run(feeds)[0], interpret(graph, feeds)[0])


def test_more_pieces_than_a_word_has_bits() -> None:
    graph = images(batch=150, size=3)
    feeds = feeds_of(graph)
    actual = cut(graph, 150, 3).run(feeds)
    for got, want in zip(actual, interpret(graph, feeds), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5)


def test_inputs_need_not_be_contiguous() -> None:
    graph = int8_images()
    feeds = {name: np.asfortranarray(array) for name, array in feeds_of(graph).items()}
    for got, want in zip(cut(graph, 4, 2).run(feeds), interpret(graph, feeds), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        ((f32(BATCH, 8), f32(BATCH, 5)), (f32(BATCH, 4),)),  # an input's samples are larger
        ((f32(BATCH, 8), f32(BATCH, 4)), (f32(BATCH, 5),)),  # so are an output's
        ((f32(BATCH, 8), f32(BATCH, 4)), (f32(BATCH // 2, 4),)),  # one piece is all of it
        ((f32(BATCH, 8), f32(BATCH, 4)), (f32(BATCH // 2, 8),)),  # as many bytes
        ((f32(BATCH // 2, 8), f32(BATCH // 2, 4)), (f32(BATCH // 2, 4),)),
        ((f32(BATCH, 8), f32(BATCH, 4)), (f32(),)),
    ],
)
def test_pieces_that_do_not_make_up_the_batch_are_refused(
    inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]
) -> None:
    x = Input(name="x", tensor=f32(BATCH // 2, 8))
    late = Input(name="late", tensor=f32(BATCH // 2, 4))
    product = ops.Gemm(name="g", x=x, w=constant(8, 4))
    target = resolve("native")
    planned = plan_program(Graph((x, late), (("y", ops.Add(name="y", x=product, y=late)),)), target)
    piece = compile_program(planned.program, planned.plan, target)
    with pytest.raises(qg.BackendError, match=r"2 pieces of .* do not make up"):
        BatchedExecutable(piece, 2, inputs, outputs)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("batch", [2, 3, 4, 8])
def test_outputs_that_are_no_samples_stay_inside_their_arrays(batch: int, threads: int) -> None:
    x = Input(name="x", tensor=f32(batch, 8))
    rows = constant(batch, 8)
    total = ops.ReduceSum(name="s", x=x, axes=(0, 1), keepdims=False)
    relu = ops.Relu(name="y", x=x)
    for others in ((rows,), (x,), (relu,), (total,), (rows, x, relu, total)):
        named = [(f"out{i}", node) for i, node in enumerate((relu, *others))]
        graph = Graph((x,), (*named, named[0]))
        feeds = feeds_of(graph)
        with harsh():
            compiled = qg.compile(graph, num_threads=threads).run(None, feeds)
        for got, want in zip(compiled, interpret(graph, feeds), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.parametrize("threads", [1, 2])
def test_several_callers_do_not_disturb_each_other(threads: int) -> None:
    graph = int8_images()
    executable = cut(graph, 6, threads)
    feeds = [feeds_of(graph, seed) for seed in range(4)]
    expected = [interpret(graph, item)[0] for item in feeds]
    wrong: list[int] = []

    def call(index: int) -> None:
        for _ in range(100):
            if not np.array_equal(executable.run(feeds[index])[0], expected[index]):
                wrong.append(index)

    callers = [threading.Thread(target=call, args=(i,)) for i in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert wrong == []


@pytest.mark.parametrize("threads", [1, 2])
def test_a_compiled_batch_runs_in_pieces(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = int8_images()
    feeds = feeds_of(graph)
    monkeypatch.setattr(batches, "NEAR_NBYTES", 1)
    compiled = qg.compile(graph, num_threads=threads)
    executable: Any = compiled.build.executable
    assert isinstance(executable, BatchedExecutable)
    for got, want in zip(compiled.run(None, feeds), interpret(graph, feeds), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_programs_for_all_shapes_compute_batches_in_pieces(threads: int) -> None:
    with harsh():
        compiled = qg.compile(wide_model(), num_threads=threads)
        programs: Any = compiled.specialisations
        for shape in ((1, 64, 8, 12), (4, 64, 9, 13), (6, 64, 16, 11), (9, 64, 10, 10)):
            feeds = {"x": image(shape)}
            served = programs.at(feeds)
            is_in_pieces = isinstance(served.build.executable, BatchedExecutable)
            assert is_in_pieces == (shape[0] > 1)
            for _ in range(2):
                results = compiled.run(None, feeds)
                for got, want in zip(results, interpret(served.graph, feeds), strict=True):
                    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
        assert all(programs.at({"x": image((n, 64, 9, 9))}).is_general for n in range(2, 9))


def test_pieces_need_less_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = int8_images()
    whole = qg.compile(graph, num_threads=1).report.memory.peak_nbytes
    monkeypatch.setattr(batches, "NEAR_NBYTES", 1)
    assert qg.compile(graph, num_threads=1).report.memory.peak_nbytes < whole / 3


@pytest.mark.slow
def test_calls_of_the_first_piece_can_be_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = int8_images()
    monkeypatch.setattr(batches, "NEAR_NBYTES", 1)
    compiled = qg.compile(graph, num_threads=1)
    assert len(profile_calls(compiled.build, feeds_of(graph), repeats=1).calls) > 1


def pieces(graph: Graph, threads: int) -> int:
    planned = plan_program(graph, resolve("native"))
    batch = graph.inputs[0].type.shape[0]
    return pieces_for(batch, planned.traffic, threads)


def weighty(inputs: int, outputs: int, batch: int = 64) -> Graph:
    """Images of 16 x 16 pixels, and a product behind them whose weights are [inputs, outputs]."""
    x = Input(name="x", tensor=f32(batch, 16, 16, inputs))
    late = ops.Relu(name="r", x=ops.Sigmoid(name="s", x=x))
    mean = ops.ReduceMean(name="m", x=late, axes=(1, 2), keepdims=False)
    y = ops.Gemm(name="y", x=mean, w=constant(inputs, outputs))
    return Graph((x,), (("y", y),))


def test_one_thread_takes_what_fits_the_cache_whole() -> None:
    assert pieces(images(), 1) == 1


def test_samples_go_one_by_one_where_weights_are_few() -> None:
    assert pieces(weighty(1024, 8), 1) == 64


def test_samples_share_the_reading_of_many_weights() -> None:
    assert 1 < pieces(weighty(1024, 8192), 1) < 64


@pytest.mark.parametrize(("threads", "expected"), [(2, 4), (3, 6), (4, 12), (6, 12), (12, 12)])
def test_threads_get_pieces_of_their_own(threads: int, expected: int) -> None:
    assert pieces(images(), threads) == expected


def test_threads_share_the_layers_where_pieces_do_not_go_round() -> None:
    assert [pieces(images(batch=5), 4), pieces(images(), 20)] == [1, 1]


def test_threads_share_the_layers_where_weights_outweigh_the_rest() -> None:
    rows = Input(name="x", tensor=f32(BATCH, 64))
    graph = Graph((rows,), (("y", ops.Gemm(name="y", x=rows, w=constant(64, 640))),))
    assert pieces(graph, 2) == 1


def test_four_threads_are_not_left_with_five_pieces() -> None:
    assert [shares_evenly(number, 4) for number in (3, 4, 5, 6, 7)] == [
        True,
        True,
        False,
        True,
        True,
    ]


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_graph_without_outputs_gives_none(threads: int) -> None:
    graph = images()
    compiled = qg.compile(Graph(graph.inputs, ()), num_threads=threads)
    assert compiled.run(None, feeds_of(graph)) == []


@pytest.mark.parametrize("batch", [2**31, 3 * 2**40, 2**61 - 1])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_batch_without_end_is_cut_at_once(batch: int, threads: int) -> None:
    """A damaged file with 2 ** 31 samples was searched for divisors for minutes."""
    pieces = pieces_for(batch, Traffic(1000, 8 * batch, 8 * batch), threads)
    assert batch % pieces == 0
    assert 1 <= pieces <= batches.MOST_PIECES

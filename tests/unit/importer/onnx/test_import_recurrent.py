"""LSTM, GRU and RNN compute what onnxruntime computes, as loops and unrolled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import quantglow as qg
from quantglow.importer.onnx import import_model
from quantglow.importer.onnx.operators.rnn import LARGE_STEP, MOST_STEPS
from quantglow.interpreter import interpret
from quantglow.support.errors import ModelError, OutOfRangeError
from tests.support.effort import expensive
from tests.unit.importer.onnx.onnx_models import (
    Const,
    assert_agrees,
    by_onnxruntime,
    floats,
    single,
    weights,
)

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def fading(*shape: int) -> Const:
    return Const(0.3 * floats(*shape, seed=1))


def recurrent(
    op: str, steps: int = 4, batch: int = 2, has_optional: bool = True, **attributes: Any
) -> tuple[Any, dict[str, np.ndarray]]:
    """A network of 3 inputs and 5 hidden values; ``has_optional``: with bias and states.  Its
    weights are so small that differences fade from step to step.
    """
    directions = 2 if attributes.get("direction") == "bidirectional" else 1
    rows = GATES[op] * 5
    x = floats(steps, batch, 3)
    operands: list[Any] = [x, fading(directions, rows, 3), fading(directions, rows, 5)]
    if has_optional:
        states = [floats(directions, batch, 5, seed=s) for s in range(1 + (op == "LSTM"))]
        operands += [weights(directions, 2 * rows), None, *states]
        if op == "LSTM":
            operands.append(weights(directions, 15))
    return single(op, *operands, outputs=2 + (op == "LSTM"), opset=14, hidden_size=5, **attributes)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op", GATES)
def test_every_direction(op: str, direction: str) -> None:
    assert_agrees(*recurrent(op, direction=direction))


@pytest.mark.parametrize("op", GATES)
def test_without_bias_and_states(op: str) -> None:
    assert_agrees(*recurrent(op, has_optional=False, steps=1, batch=1))


@pytest.mark.parametrize("late", [0, 1])
def test_gru_resets_before_or_behind_the_product(late: int) -> None:
    assert_agrees(*recurrent("GRU", linear_before_reset=late, direction="bidirectional"))


@pytest.mark.parametrize("op", GATES)
def test_clipped_gates_and_other_activations(op: str) -> None:
    functions = {"LSTM": ["Sigmoid", "Relu", "Tanh"], "GRU": ["Sigmoid", "Relu"], "RNN": ["Relu"]}
    assert_agrees(*recurrent(op, clip=0.3, activations=functions[op]))


@pytest.mark.parametrize("steps", [MOST_STEPS, 7])
@pytest.mark.parametrize("op", GATES)
def test_compiled_int8_equals_the_interpreter(op: str, steps: int) -> None:
    model, feeds = recurrent(op, steps)
    graph = import_model(model)
    int8 = qg.quantize(graph, qg.profile(graph, [feeds], progress=False))
    for expected, value in zip(
        qg.interpret(int8, feeds), qg.compile(int8).run(None, feeds), strict=True
    ):
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-5)
    assert any(node.type.quant for node in int8.every_node())


@pytest.mark.parametrize(
    ("operands", "attributes"),
    [
        ({}, {"activations": ["Sigmoid", "Softsign", "Tanh"]}),
        ({}, {"input_forget": 1}),
    ],
)
def test_recurrences_that_are_not_unrolled_run_in_onnxruntime(
    operands: dict[int, Any], attributes: dict[str, Any]
) -> None:
    inputs: list[Any] = [floats(4, 2, 3), weights(1, 20, 3), weights(1, 20, 5), None, None]
    for position, operand in operands.items():
        inputs[position] = operand
    model, _ = single("LSTM", *inputs, opset=14, hidden_size=5, **attributes)
    with pytest.raises(qg.UnsupportedOpError, match="LSTM"):
        import_model(model)
    assert [n.op for n in qg.import_model(model).compute_nodes()] == ["External"]


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op", GATES)
def test_long_sequences_are_loops(op: str, direction: str) -> None:
    model, feeds = recurrent(op, steps=MOST_STEPS + 1, direction=direction)
    assert_agrees(model, feeds)
    kinds = {node.op for node in import_model(model).nodes}
    assert "Loop" in kinds and "External" not in kinds


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("lengths", [Const(np.array([4, 2], np.int32)), np.array([0, 3], np.int32)])
@pytest.mark.parametrize("op", GATES)
def test_sequences_of_different_lengths(op: str, lengths: Any, direction: str) -> None:
    directions = 2 if direction == "bidirectional" else 1
    rows = GATES[op] * 5
    operands = [weights(directions, rows, 3), weights(directions, rows, 5), None, lengths]
    states = [floats(directions, 2, 5, seed=s) for s in range(1 + (op == "LSTM"))]
    assert_agrees(
        *single(
            op,
            floats(4, 2, 3),
            *operands,
            *states,
            outputs=2 + (op == "LSTM"),
            opset=14,
            hidden_size=5,
            direction=direction,
        )
    )


def with_length(length: int, is_constant: bool) -> tuple[Any, dict[str, np.ndarray]]:
    """An LSTM of 4 steps on two sequences, one of which has ``length`` steps."""
    lengths = np.array([2, length], np.int32)
    given_lengths = Const(lengths) if is_constant else lengths
    operands = [floats(4, 2, 3), weights(1, 20, 3), weights(1, 20, 5), None, given_lengths]
    return single("LSTM", *operands, outputs=3, opset=14, hidden_size=5)


@pytest.mark.parametrize("length", [-1, 5])
def test_onnxruntime_refuses_lengths_out_of_range(length: int) -> None:
    with pytest.raises(Exception, match="Invalid value/s in sequence_lens"):
        by_onnxruntime(*with_length(length, is_constant=False))


@pytest.mark.parametrize("length", [-1, 5])
def test_a_known_length_out_of_range_is_refused(length: int) -> None:
    with pytest.raises(ModelError, match=f"index {length} is out of range for an axis of length 4"):
        import_model(with_length(length, is_constant=True)[0])


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("length", [-1, 5])
def test_a_length_out_of_range_is_an_error_of_the_run(
    length: int, threads: int, tmp_path: Path
) -> None:
    model, feeds = with_length(length, is_constant=False)
    compiled = qg.compile(model, num_threads=threads)
    compiled.save(tmp_path / "lstm.qgm")
    runs = (
        lambda: interpret(import_model(model), feeds),
        lambda: compiled.run(None, feeds),
        lambda: qg.load(tmp_path / "lstm.qgm").run(None, feeds),
    )
    for run in runs:
        with pytest.raises(
            OutOfRangeError, match=f"index {length} is out of range for an axis of length 4"
        ):
            run()


@given(
    op=st.sampled_from([*GATES]),
    steps=st.integers(1, 300),
    batch=st.integers(1, 4),
    direction=st.sampled_from(["forward", "reverse", "bidirectional"]),
    given_=st.booleans(),
)
@expensive
def test_compiled_networks_agree_with_onnxruntime(
    op: str, steps: int, batch: int, direction: str, given_: bool
) -> None:
    model, feeds = recurrent(op, steps, batch, given_, direction=direction)
    compiled = qg.compile(model).run(None, feeds)
    for mine, expected in zip(compiled, by_onnxruntime(model, feeds), strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("hidden", [500, 1100])
def test_steps_that_threads_share_are_unrolled(hidden: int) -> None:
    operands = [floats(6, 1, 2), weights(1, 4 * hidden, 2), weights(1, 4 * hidden, hidden)]
    model, _ = single("LSTM", *operands, opset=14, hidden_size=hidden)
    kinds = {node.op for node in import_model(model).nodes}
    assert ("Loop" in kinds) == (4 * hidden**2 < LARGE_STEP)

"""TFLite files in: each operator is within one step of LiteRT's, on cases and in real networks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import quantglow as qg
from quantglow.importer.tflite.files import KINDS, TfliteFile
from quantglow.importer.tflite.operators import RULES, write
from tests.support.tflite_cases import CASES, inputs_of
from tools.downloads.mlperf_tiny import SOURCES, int8_file, samples

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="ai-edge-litert is not installed")

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("default")]

PLAIN = litert.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
"""LiteRT's own kernels; by default XNNPACK's take their place where there are some."""

SEEDS = range(4)
OTHER_KINDS = {"SQUEEZE", "EXPAND_DIMS", "PADV2"}
"""Operators that share the rule of one that has a case."""


def interpreter(data: bytes, **options: Any) -> Any:
    interpreter = litert.Interpreter(model_content=data, **options)
    interpreter.allocate_tensors()
    return interpreter


def answers(judge: Any, arrays: list[Any]) -> Any:
    """LiteRT's first output."""
    for info, array in zip(judge.get_input_details(), arrays, strict=True):
        judge.set_tensor(info["index"], array)
    judge.invoke()
    return judge.get_tensor(judge.get_output_details()[0]["index"])


def apart(actual: Any, expected: Any) -> float:
    """Largest difference: in steps for integers."""
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
    return float(np.abs(actual.astype(np.float64) - expected.astype(np.float64)).max())


@pytest.mark.parametrize("xnnpack", [False, True], ids=["plain", "xnnpack"])
@pytest.mark.parametrize("name", CASES)
def test_each_operator_is_within_one_step_of_litert(name: str, xnnpack: bool) -> None:
    data = CASES[name]()
    more = {} if xnnpack else {"experimental_op_resolver_type": PLAIN}
    judge, compiled = interpreter(data, **more), qg.compile(data, num_threads=1)
    shapes = [(tuple(i["shape"]), i["dtype"]) for i in judge.get_input_details()]
    for seed in SEEDS:
        arrays = inputs_of(shapes, seed)
        most = 1e-6 if name == "dequantize" else 1
        assert apart(compiled(*arrays), answers(judge, arrays)) <= most


def test_every_rule_has_a_case() -> None:
    kinds = {
        operator.kind for make in CASES.values() for operator in TfliteFile.of(make()).operators
    }
    assert kinds | OTHER_KINDS == RULES.keys()
    assert kinds <= set(KINDS.values())


def stored(task: str, array: Any, judge: Any) -> Any:
    """An input in the integers of the network."""
    scale, zero = judge.get_input_details()[0]["quantization"]
    return np.clip(np.rint(array / scale) + zero, -128, 127).astype(np.int8)


def data_of(task: str) -> bytes:
    try:
        return int8_file(task).read_bytes()
    except FileNotFoundError as error:
        pytest.skip(f"{task} is not in the repository; to get it: {error}")


@pytest.mark.parametrize("task", SOURCES)
def test_each_operator_of_a_real_network_is_within_one_step(task: str) -> None:
    data = data_of(task)
    file = TfliteFile.of(data)
    judge = interpreter(
        data, experimental_preserve_all_tensors=True, experimental_op_resolver_type=PLAIN
    )
    inputs = [stored(task, array, judge) for array in samples(task, 2)]
    for operator in file.operators:
        live = [i for i in operator.inputs if i >= 0 and file.tensors[i].value is None]
        alone = TfliteFile(file.tensors, [operator], live, operator.outputs)
        compiled = qg.compile(write(alone), num_threads=1)
        for array in inputs:
            answers(judge, [array])
            compiled_model = compiled(*(judge.get_tensor(i) for i in live))
            assert apart(compiled_model, judge.get_tensor(operator.outputs[0])) <= 1


@pytest.mark.parametrize("task", SOURCES)
def test_a_real_network_is_int8_throughout_and_answers_as_litert(task: str) -> None:
    data = data_of(task)
    judge, compiled = interpreter(data), qg.compile(data)
    inputs = [stored(task, array, judge) for array in samples(task, 20)]
    pairs = [(compiled(array), answers(judge, [array])) for array in inputs]
    assert all(node.type.dtype.numpy == np.int8 for node in compiled.graph.nodes if node.operands)
    assert np.mean([f.argmax() == w.argmax() for f, w in pairs]) >= 0.9
    assert np.mean([(f != w).mean() for f, w in pairs]) < 0.15

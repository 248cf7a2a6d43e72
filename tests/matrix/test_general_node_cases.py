"""The ONNX project's cases with free dimensions: what a program for all shapes serves, it computes
as a program of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest

import quantglow as qg
from quantglow.ir.graph.family import Case, may_decide
from quantglow.ir.symbolic.expression import Values
from quantglow.runtime.native.executable import LlvmExecutable
from quantglow.runtime.shapes.free_shapes import FreeShapes
from quantglow.runtime.shapes.general import GeneralProgram, general_program, plan_program_for
from quantglow.runtime.shapes.general_programs import HALVINGS
from quantglow.support.errors import QuantglowError
from tests.matrix import node_cases
from tests.support.free_dimensions import RESIZES, bytes_of, freed, resized

NAMES = """
Add And ArgMax Attention Clip Concat CumSum DepthToSpace Dropout Einsum Equal Expand Flatten
Gather GatherElements GatherND Gemm GlobalAveragePool GridSample GroupNormalization Hardmax
InstanceNormalization LRN LayerNormalization LogSoftmax LpNormalization MatMul
MeanVarianceNormalization NegativeLogLikelihoodLoss PRelu Pad RMSNormalization ReduceLogSumExp
ReduceMax ReduceMean ReduceProd Reshape Resize ReverseSequence RotaryEmbedding STFT
ScatterElements ScatterND Shape Sin Slice Softmax SoftmaxCrossEntropyLoss SpaceToDepth Split
Squeeze Sum TensorScatter ThresholdedRelu Tile TopK Transpose Trilu Unsqueeze Where
"""
QUICK = {"Gather", "MatMul", "Reshape", "Slice"}


def parameters() -> Iterator[Any]:
    """Operators, their free dimensions with names in common or not: each operator in one of these
    ways, the next one in the other; the rest is exhaustive.
    """
    for number, operator in enumerate(NAMES.split()):
        slow = () if operator in QUICK else (pytest.mark.slow,)
        for are_shared in (True, False):
            is_turn = are_shared == (number % 2 == 0)
            marks = slow if is_turn else (pytest.mark.slow, pytest.mark.exhaustive)
            yield pytest.param(operator, are_shared, marks=marks)


@pytest.mark.slow_variants
@pytest.mark.parametrize(("operator", "are_shared"), [*parameters()])
def test_one_program_computes_what_a_program_for_each_shape_does(
    operator: str, are_shared: bool
) -> None:
    results = [serves(case, are_shared) for case in node_cases.node_cases(operator)]
    assert any(results)


@pytest.mark.parametrize("are_shared", [True, False])
def test_one_program_computes_what_a_program_for_each_shape_of_some_attentions_does(
    are_shared: bool,
) -> None:
    """A few of the many cases of Attention, all of which are slow."""
    assert any(serves(case, are_shared) for case in node_cases.node_cases("Attention")[::20])


def serves(case: node_cases.Case, are_shared: bool) -> bool:
    """Whether there is a program for all shapes, which then gives the bytes of programs of their
    own wherever its guards hold, as they do at the shapes of the case.
    """
    try:
        compiled = qg.compile(freed(with_known_integers(case), are_shared), num_threads=1)
    except QuantglowError:
        return False
    if not isinstance(compiled, qg.CompiledModel):
        return False
    models = compiled.specialisations
    if not isinstance(models, FreeShapes):
        return False
    arrays = {v.name: a for v, a in zip(case.model.graph.input, case.inputs, strict=True)}
    operands = {
        port.name: arrays[port.name].astype(port.dtype.numpy) for port in models.signature.inputs
    }
    # Programs that are made when others do not serve have smaller tiles.
    program = build_general(models, Case.fitting(operands), caution=len(case.name) % 4 * HALVINGS)
    if program is None:
        return False
    for resize in RESIZES:
        feeds = {name: resized(array, resize) for name, array in operands.items()}
        values = program.values_at(Case.fitting(feeds))
        assert values is not None or resize is not RESIZES[0]
        if values is not None:
            served = LlvmExecutable.of(program.loaded, values).run(feeds)
            ours = models.compiler.compile(models.graph_at(Case.fitting(feeds)))
            assert bytes_of(served) == bytes_of(ours.executable.run(feeds)), (case.name, values)
            assert bytes_of(read_again(program, values).run(feeds)) == bytes_of(served)
    return True


def read_again(program: GeneralProgram, values: Values) -> LlvmExecutable:
    """The executable of a program that is made for these sizes from the text of its graph."""
    again = plan_program_for(program.source, *program.source.at(values), program.compiler)
    return LlvmExecutable.of(again.loaded, values)


def build_general(models: FreeShapes, hint: Case, caution: int) -> GeneralProgram | None:
    try:
        return general_program(
            models.signature, hint, models.graph_at, models.compiler, caution=caution
        )
    except QuantglowError:
        return None


def with_known_integers(case: node_cases.Case) -> onnx.ModelProto:
    """The model with small integers as initializers."""
    operands = zip(case.model.graph.input, case.inputs, strict=True)
    known = {v.name for v, array in operands if may_decide(array) and array.dtype != np.bool_}
    model = case.with_known(known)
    inputs = [value for value in case.model.graph.input if value.name not in known]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    return model

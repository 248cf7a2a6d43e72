"""Every covered operator means what the ONNX project's own cases say, interpreted and compiled."""

from __future__ import annotations

import pytest

from quantglow.interpreter import interpret
from tests.generators.unary_functions import FUNCTIONS
from tests.matrix.harness import on_llvm
from tests.matrix.node_cases import node_cases

INTEGERS = """
Abs Add And BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Clip Div Equal Greater
GreaterOrEqual IsInf IsNaN Less LessOrEqual Max Min Mod Mul Neg Or Sub Where Xor
"""
FORMULAS = """
Acos Acosh Asin Asinh Atan Atanh Cos Cosh Mish Round Sign Sin Sinh Sum Tan
"""
INDEXING = """
ArgMax ArgMin Compress Gather GatherElements GatherND Hardmax OneHot ReverseSequence Scatter
ScatterElements ScatterND TensorScatter TopK Trilu
"""
REDUCTIONS = """
ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum
ReduceSumSquare CumProd CumSum Einsum GridSample LpNormalization LpPool
"""
RECURRENT = "GRU LSTM RNN"
DEFINED = """
Attention GroupNormalization InstanceNormalization LayerNormalization
MeanVarianceNormalization RMSNormalization RotaryEmbedding
"""
"""Operators that are imported as their definition, because their parameters are inputs here."""

LEFT_OUT = (
    *("16_fmod", "bicubic", "volumetric", "lppool_3d", "test_layer_normalization_[34]d"),
    *("attention_3d", "attention.*16", "softcap", "softmax_precision"),
)
"""A remainder of float16 that differs in float32, cases that are not computed, and some of the
many of Attention and LayerNormalization, to save time."""

NAMES = (INTEGERS, FORMULAS, INDEXING, REDUCTIONS, DEFINED, RECURRENT)
DECLARED = {form.name for form in FUNCTIONS if form.importable}
OPERATORS = sorted(DECLARED.union(*(names.split() for names in NAMES)))


@pytest.mark.parametrize("operator", OPERATORS)
def test_the_cases_of_an_operator_are_computed(operator: str) -> None:
    """The parameter is the operator: making the cases takes seconds, so it waits for the first
    test.
    """
    cases = [case for case in node_cases(operator) if not case.matches(LEFT_OUT)]
    assert cases
    for case in cases:
        graph = case.graph()
        feeds = case.feeds(graph)
        case.check(interpret(graph, feeds))
        case.check(on_llvm(graph, feeds, "native"))

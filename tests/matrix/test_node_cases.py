"""Every covered operator means what the ONNX project's own cases say, interpreted and compiled."""

from __future__ import annotations

import pytest

from quantglow.interpreter import interpret
from tests.matrix.harness import on_llvm
from tests.matrix.node_cases import Case, node_cases

INTEGERS = """
Abs Add And BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast CastLike Clip Div Equal Greater
GreaterOrEqual IsInf IsNaN Less LessOrEqual Max Min Mod Mul Neg Not Or Sub Where Xor
"""
FORMULAS = """
Acos Acosh Asin Asinh Atan Atanh Celu Cos Cosh Elu Erf Exp HardSigmoid HardSwish LeakyRelu Log Mish
Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Sum Tan Tanh
ThresholdedRelu
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
Attention CastLike GroupNormalization InstanceNormalization LayerNormalization
MeanVarianceNormalization RMSNormalization RotaryEmbedding
"""
"""Operators that are imported as their definition, here because parameters are inputs."""

LEFT_OUT = (
    *("FLOAT8", "FLOAT4", "INT4", "INT2", "FLOAT16_to", "to_FLOAT16", "BFLOAT16", "16_fmod"),
    *(
        "attention_3d",
        "attention.*16",
        "softcap",
        "softmax_precision",
        *("test_layer_normalization_[34]d", "bicubic", "volumetric", "lppool_3d"),
    ),
)
"""Casts between types that are all float32 here, types that are not computed; and some
of the many cases of Attention and LayerNormalization, for the time they take."""

CASES = [
    *node_cases(
        (INTEGERS + FORMULAS + INDEXING + REDUCTIONS + DEFINED + RECURRENT).split(), LEFT_OUT
    )
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_node_case_is_computed(case: Case) -> None:
    graph = case.graph()
    feeds = case.feeds(graph)
    case.check(interpret(graph, feeds))
    case.check(on_llvm(graph, feeds, "native"))

"""Hypothesis: shapes, arrays, permutations, activations, and numbers that masks use."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from quantglow.ir.ops.activation import Activation

LOWS = (-np.inf, -1e4, -1e9, float(np.finfo(np.float32).min))
"""Numbers that masks add to hidden values."""


def shapes(rank: int, largest: int = 5) -> st.SearchStrategy[tuple[int, ...]]:
    """Shapes of one rank; axes of size 1 are common."""
    return st.tuples(*[st.one_of(st.just(1), st.integers(1, largest))] * rank)


def tensors(shape: tuple[int, ...], bound: float = 10.0) -> st.SearchStrategy[np.ndarray]:
    """Finite float32 arrays."""
    values = st.floats(-bound, bound, width=32, allow_subnormal=False)
    return hnp.arrays(np.float32, shape, elements=values)


def permutations(rank: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.permutations(range(rank)).map(tuple)


@st.composite
def activations(draw: st.DrawFn) -> Activation:
    """Activations of contractions, each kind with unusual numbers, too."""
    op, *parameters = draw(
        st.sampled_from(
            [
                ("HardSwish",),
                ("HardSigmoid", 0.2, 0.5),
                ("HardSigmoid", -0.7, 0.1),
                ("HardSigmoid", 0.0, 0.3),
                ("LeakyRelu", 0.1),
                ("LeakyRelu", -1.5),
            ]
        )
    )
    factor = draw(st.sampled_from([1.0, 1.0, 0.37, -1.3, 0.0]))
    return Activation(op, tuple(parameters), factor, draw(st.sampled_from([0.0, 0.0, 1.0, -0.21])))

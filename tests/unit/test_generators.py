"""Every operator and instruction that a generator knows is drawn."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from hypothesis import find
from hypothesis import strategies as st

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import OPS, Constant
from quantglow.ir.program.program import Program
from quantglow.ir.types import DType
from tests.generators.float_graphs import layers
from tests.generators.float_graphs.networks import fused_networks, networks
from tests.generators.programs import programs
from tests.generators.quantized_graphs import steps
from tests.generators.quantized_graphs.graphs import mixed_graphs
from tests.support import builder
from tests.support.effort import exhaustive


def draws_all(
    strategy: st.SearchStrategy[Any], kinds: Callable[[Any], set[Any]], expected: set[Any]
) -> None:
    """Draw until every wanted kind was seen; ``NoSuchExample`` if one never is."""
    observed: set[Any] = set()

    def is_last(actual: set[Any]) -> bool:
        observed.update(actual)
        return observed >= expected

    find(strategy.map(kinds), is_last, settings=exhaustive)


def operators(graph: Graph) -> set[str]:
    return {node.op for node in graph.compute_nodes()}


def named_in(*modules: ModuleType) -> set[str]:
    """Operators that modules import."""
    names = {name for module in modules for name in vars(module)}
    return (names & OPS.keys()) - {"Input", Constant.__name__}


def test_networks_have_every_operator_of_their_layers() -> None:
    pair = st.one_of(networks(), fused_networks())
    draws_all(pair, operators, named_in(layers, builder))


@pytest.mark.slow
def test_mixed_graphs_have_every_operator_of_their_steps() -> None:
    draws_all(mixed_graphs(), operators, named_in(steps))


def test_mixed_graphs_have_contractions_of_every_type() -> None:
    def kinds(graph: Graph) -> set[tuple[str, DType]]:
        return {(node.op, node.operands[0].type.dtype) for node in graph.compute_nodes()}

    types = (DType.I8, DType.I16, DType.F32)
    draws_all(mixed_graphs(), kinds, {(op, dtype) for op in ("Conv", "MatMul") for dtype in types})


def test_programs_have_every_instruction() -> None:
    def instructions(program: Program) -> set[str]:
        return {type(step).__name__ for step in program.instructions}

    draws_all(programs(), instructions, {"Alloc", "Dealloc", "Compute", "Copy", "Fill"})

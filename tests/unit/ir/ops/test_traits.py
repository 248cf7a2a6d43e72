"""Every fact that an operator declares holds, and some stage asks for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import quantglow
from quantglow.ir.graph.kinds import Trait
from quantglow.ir.graph.node import OPS, Constant, Input, Node, operand_fields
from quantglow.ir.ops import Pad
from quantglow.support.arrays import Array
from tests.unit.export.onnx.export_cases import FLOAT, INT8
from tests.unit.export.onnx.export_kit import Kit

ROOT = Path(quantglow.__file__).parent


def examples() -> dict[str, Node]:
    """A node of each kind, in float where that form exists, by the name of the case."""
    actual: dict[str, Node] = {}
    for int8, cases in ((False, FLOAT), (True, INT8)):
        for case, make in cases.items():
            kit = Kit(0, int8)
            built = make(kit)
            actual.setdefault(case, built)
            for node in kit.graph(built).nodes:
                actual.setdefault(node.op, node)
    return actual


EXAMPLES = examples()
CASES = [
    pytest.param(node, trait, id=f"{name}-{trait.name}")
    for name, node in EXAMPLES.items()
    for trait in Trait
    if node.has(trait)
]


def drawn(node: Node, seed: int = 1) -> list[Array]:
    """Operands, Constants as they are."""
    rng = np.random.default_rng(seed)
    return [
        o.value if isinstance(o, Constant) else numbers(rng, o.type.dtype.numpy, o.type.shape)
        for o in node.operands
    ]


def numbers(rng: np.random.Generator, dtype: type, shape: tuple[int, ...]) -> Array:
    if dtype is np.bool_:
        return rng.random(shape) < 0.5
    values = rng.permutation(np.arange(1, 1 + int(np.prod(shape)))).reshape(shape) % 100
    return values.astype(dtype)


def computed(node: Node, operands: list[Array]) -> Array:
    with np.errstate(all="ignore"):
        return node.evaluate(*operands)


def brought(node: Node) -> list[float]:
    return [node.value] if isinstance(node, Pad) else []


def elementwise(node: Node) -> None:
    """Whole operands are turned round together."""
    shape = node.type.shape
    whole = [np.broadcast_to(a, shape) for a in drawn(node)]
    operands = tuple(
        Input(name=f"x{i}", tensor=o.type.with_shape(shape)) for i, o in enumerate(node.operands)
    )
    wide = node.with_operands(operands)
    turned = computed(wide, [np.flip(a) for a in whole])
    np.testing.assert_allclose(turned, np.flip(computed(wide, whole)), rtol=1e-6)


def moves(node: Node) -> None:
    numbers = np.concatenate([*(a.ravel() for a in drawn(node)), brought(node)])
    assert np.isin(computed(node, drawn(node)), numbers.astype(node.type.dtype.numpy)).all()


def rearranges(node: Node) -> None:
    (x,) = node.operands
    result = computed(node, [np.arange(x.type.size).reshape(x.type.shape)])
    assert np.unique(result).size == result.size
    assert np.isin(result, np.arange(x.type.size)).all()


def chooses(node: Node) -> None:
    """The function leaves the number that the node brings."""
    fixed = np.float32((brought(node) or [0.0])[0])

    def rising(x: Array) -> Array:
        return fixed + np.sign(x - fixed) * np.abs(x - fixed) ** 3

    before = computed(node, [rising(a) for a in drawn(node)])
    np.testing.assert_array_equal(before, rising(computed(node, drawn(node))))


def keeps_zero(node: Node) -> None:
    operands = [a if a.dtype.kind == "i" else np.zeros_like(a) for a in drawn(node)]
    assert np.isin(computed(node, operands), np.float32([0.0, *brought(node)])).all()


def view(node: Node) -> None:
    (x,) = drawn(node)
    assert np.isin(computed(node, [x]), x).all()


def passes_specials(node: Node) -> None:
    operands = [np.full_like(a, -np.inf) if a.dtype.kind == "f" else a for a in drawn(node)]
    results = computed(node, operands)
    assert np.isneginf(results).any() or np.isnan(results).any()


LAWS = {
    Trait.ELEMENTWISE: elementwise,
    Trait.MOVES: moves,
    Trait.REARRANGES: rearranges,
    Trait.CHOOSES: chooses,
    Trait.KEEPS_ZERO: keeps_zero,
    Trait.VIEW: view,
    Trait.PASSES_SPECIALS: passes_specials,
}
LAWFUL = [case for case in CASES if case.values[1] in LAWS]


@pytest.mark.parametrize(("node", "trait"), LAWFUL)
def test_declared_traits_hold(node: Node, trait: Trait) -> None:
    LAWS[trait](node)


@pytest.mark.parametrize("name", sorted(OPS))
def test_every_operator_is_among_the_examples(name: str) -> None:
    assert name in {node.op for node in EXAMPLES.values()}


@pytest.mark.parametrize("trait", Trait)
def test_every_trait_is_declared_and_asked_for(trait: Trait) -> None:
    files = [p for p in ROOT.rglob("*.py") if p.name != "kinds.py"]
    users = {p.parent for p in files if f"Trait.{trait.name}" in p.read_text()}
    assert ROOT / "ir" / "ops" in users
    assert len(users) > 1


@pytest.mark.parametrize("kind", OPS.values(), ids=lambda kind: kind.__name__)
def test_in_place_operands_are_operands(kind: type[Node]) -> None:
    assert set(kind.in_place) <= set(operand_fields(kind))


ORDERS = ((0, 2, 3, 1), (2, 1, 0, 3), (1, 0, 2))
PERMUTED = [
    pytest.param(node, order, id=f"{name}-{''.join(map(str, order))}")
    for name, node in EXAMPLES.items()
    for order in ORDERS
    if node.type.rank == len(order) and node.permute(order) is not None
]


@pytest.mark.parametrize(("node", "order"), PERMUTED)
def test_a_permuted_operator_gives_the_permuted_result(node: Node, order: tuple[int, ...]) -> None:
    operands, arrays = list(node.operands), drawn(node)
    moved = list(arrays)
    for i, operand in enumerate(operands):
        if node.has(Trait.ELEMENTWISE) or operand.type.rank == node.type.rank:
            missing = (1,) * (node.type.rank - operand.type.rank)
            moved[i] = arrays[i].reshape(missing + operand.type.shape).transpose(order)
            operands[i] = Input(name=f"x{i}", tensor=operand.type.with_shape(moved[i].shape))
    built = node.with_operands(tuple(operands), **node.permute(order) or {})
    expected = computed(node, arrays).transpose(order)
    np.testing.assert_allclose(computed(built, moved), expected, rtol=1e-6)

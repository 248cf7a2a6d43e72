"""Sums of products: matrices and Einstein sums."""

from __future__ import annotations

import numpy as np

from tests.generators.onnx_models.drawing import FLOAT, MICROSOFT, Drawing, Rejected
from tests.generators.onnx_models.operators.family import draws


@draws("Gemm", often=4)
def gemm(d: Drawing) -> object:
    x = d.floats(2)
    transposes = {"transA": d.integer(0, 1), "transB": d.integer(0, 1)}
    k, n = x.shape[0 if transposes["transA"] else 1], d.choose((1, 3, 8, 17))
    w = d.weights(n, k) if transposes["transB"] else d.weights(k, n)
    b = (d.normal(*d.choose(((n,), (1, n), (1,)))),) if d.chance(0.7) else ()
    factors = d.some({"alpha": (0.5, -1.5), "beta": (0.25, -1.0)})
    return d.node("Gemm", x, w, *b, **transposes, **factors)


@draws("MatMul", often=5)
def matmul(d: Drawing) -> object:
    x = d.floats(1, 2, 3, 4)
    partners = [
        v for v in d.values if v.element == FLOAT and v.rank > 1 and v.shape[-2] == x.shape[-1]
    ]
    if partners and d.chance(0.5):
        return d.node("MatMul", x, d.choose(partners))
    if x.rank > 1 and d.chance(0.3):
        order = [*range(x.rank - 2), x.rank - 1, x.rank - 2]
        return d.node("MatMul", x, d.node("Transpose", x, perm=order))
    return d.node("MatMul", x, d.weights(x.shape[-1], d.choose((1, 4, 9, 16))))


@draws("MatMulNBits", often=2)
def matmul_n_bits(d: Drawing) -> object:
    """Weights of 4 or 8 bits in blocks, activations in float."""
    x = d.floats(2, 3, 4)
    depth, columns, bits, block = x.shape[-1], d.choose((1, 4, 17)), d.choose((4, 8)), 16
    blocks = -(-depth // block)
    codes = d.rng.integers(0, 256, (columns, blocks, block * bits // 8)).astype(np.uint8)
    step = 2 / 2**bits / depth**0.5
    operands = [x, d.constant(codes), d.uniform(0.5 * step, step, columns, blocks)]
    if d.chance(0.5):
        points = d.rng.integers(0, 256, (columns, -(-blocks * bits // 8)))
        operands.append(d.constant(points.astype(np.uint8)))
    sizes = {"K": depth, "N": columns, "bits": bits, "block_size": block}
    result = (FLOAT, (*x.shape[:-1], columns))
    return d.classical("MatMulNBits", operands, result, domain=MICROSOFT, **sizes)


@draws("Einsum", often=3)
def einsum(d: Drawing) -> object:
    """Letters for the axes of one to three operands; the result has any of them."""
    x = d.floats(1, 2, 3, 4)
    sizes = dict(zip("abcd", x.shape, strict=False))
    terms, operands = ["".join(sizes)], [x]
    for letter in "xy"[: d.integer(0, 2)]:
        old = [c for c in sizes if d.chance(0.5)]
        sizes[letter] = d.integer(1, 5)
        term = shuffled(d, [*old, letter])
        terms.append(term)
        operands.append(d.weights(*(sizes[c] for c in term)))
    kept = shuffled(d, [c for c in sizes if d.chance(0.6)])
    equation = ",".join(terms) + (f"->{kept}" if d.chance(0.85) else "")
    if any(size > 20 for size in sizes.values()):
        raise Rejected("long sums")
    return d.node("Einsum", *operands, equation=equation)


def shuffled(d: Drawing, letters: list[str]) -> str:
    return "".join(letters[int(i)] for i in d.rng.permutation(len(letters)))

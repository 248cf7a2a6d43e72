"""``export_onnx`` keeps lengths free where masks are built as exporters of decoders build them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import quantglow as qg
from quantglow.support.arrays import Array
from tests.support.combinations import covering
from tests.unit.runtime.exports.test_export_free import assert_equal_runs
from tests.unit.runtime.exports.test_export_sizes import assert_near_runs

LENGTHS = """
    batch=Shape<start=0,end=1>(x) length=Shape<start=1,end=2>(x) past=Shape<start=1,end=2>(keys)
    total=Add(past,length)
    t=Squeeze(length) p=Squeeze(past) all=Squeeze(total)
    zero=Constant<value_int=0>() one=Constant<value_int=1>() ones=Constant<value_ints=[1]>()
    lowest=Constant<value_float=-3.4028234663852886e+38>() none=Constant<value_float=0.0>()
"""
"""Sizes of ``x`` [N, T, 8], the new words, and of ``keys`` [N, P, 8], the cache."""

POSITIONS = """
    r0=Constant<value_ints=[0]>() r1=Constant<value_ints=[1]>()
    columns=Range(zero,all,one) rows=Range(p,all,one)
    across=Unsqueeze(columns,r0) down=Unsqueeze(rows,r1)
"""

ATTENTION = """
    k=Concat<axis=1>(keys,x) kt=Transpose<perm=[0,2,1]>(k)
    q=MatMul(x,w) scores=MatMul(q,kt)
    masked=Add(scores,bias) weights=Softmax<axis=-1>(masked) y=MatMul(weights,k)
"""

MASKS = {
    "rows compared with columns": POSITIONS
    + """
        seen=LessOrEqual(across,down) bias=Where(seen,none,lowest)""",
    "infinities where later": POSITIONS
    + """
        hidden=Greater(across,down) infinite=Constant<value=float {-inf}>()
        bias=Where(hidden,infinite,none)""",
    "a triangle of a constant": """
        shape=Concat<axis=0>(length,total) full=ConstantOfShape<value=float[1]{-10000}>(shape)
        next=Add(p,one) upper=Trilu<upper=1>(full,next)
        grown=Concat<axis=0>(batch,length,total) bias=Expand(upper,grown)""",
    "a triangle of infinities": """
        shape=Concat<axis=0>(length,total) full=ConstantOfShape<value=float[1]{-inf}>(shape)
        next=Add(p,one) bias=Trilu<upper=1>(full,next)""",
    "a triangle of conditions": """
        shape=Concat<axis=0>(length,total) full=ConstantOfShape<value=int64[1]{1}>(shape)
        lower=Trilu<upper=0>(full,p) seen=Cast<to=9>(lower) bias=Where(seen,none,lowest)""",
}
"""The number that is added to each score; 0 for columns up to the row's own."""

ATTENDED = {
    "an attention mask": POSITIONS
    + """
        early=LessOrEqual(across,down) given=Cast<to=9>(attention_mask)
        wide=Unsqueeze(given,r1) seen=And(early,wide) bias=Where(seen,none,lowest)""",
    "what an attention mask leaves, by a product": """
        r1=Constant<value_ints=[1]>() number=Cast<to=1>(attention_mask)
        whole=Constant<value_float=1.0>() rest=Sub(whole,number) wide=Unsqueeze(rest,r1)
        bias=Mul(wide,lowest)""",
    "positions from sums of an attention mask": """
        axis=Constant<value_int=1>() sums=CumSum(attention_mask,axis) places=Sub(sums,one)
        empty=Equal(attention_mask,zero) positions=Where(empty,one,places)
        r1=Constant<value_ints=[1]>() r2=Constant<value_ints=[2]>()
        ends=Unsqueeze(positions,r1) begin=Slice(positions,past,total,ones) down=Unsqueeze(begin,r2)
        seen=LessOrEqual(ends,down) bias=Where(seen,none,lowest)""",
}
"""The same with a 0 or 1 for each word of the cache and each new one."""

SIZES = [(1, 3, 6), (2, 5, 4), (1, 1, 9), (3, 7, 2)]
"""Batch, new words, words of the cache."""


def model_of(name: str) -> onnx.ModelProto:
    """A decoder's attention over a cache."""
    inputs = "float[N,T,8] x, float[N,P,8] keys"
    if name in ATTENDED:
        inputs += ", int64[N,L] attention_mask"
    weights = ",".join(str((i * 7 % 17 - 8) / 20) for i in range(64))
    head = f'<ir_version: 9, opset_import: ["" : 17]> g ({inputs}) => (float[N,T,8] y)'
    nodes = LENGTHS + {**MASKS, **ATTENDED}[name] + ATTENTION
    return onnx.parser.parse_model(f"{head} <float[8,8] w={{{weights}}}> {{ {nodes} }}")


def feeds_of(name: str, sizes: tuple[int, int, int], seed: int) -> dict[str, Array]:
    """Words of a batch whose rows have fewer and fewer words in front."""
    rng = np.random.default_rng(seed)
    batch, length, past = sizes
    shapes = {"x": (batch, length, 8), "keys": (batch, past, 8)}
    feeds = {n: rng.normal(size=shape).astype(np.float32) for n, shape in shapes.items()}
    if name in ATTENDED:
        mask = np.ones((batch, past + length), np.int64)
        for row in range(batch):
            mask[row, : min(row, past - 1)] = 0
        feeds["attention_mask"] = mask
    return feeds


@pytest.mark.slow_variants
@pytest.mark.parametrize(("name", "precision"), covering([*MASKS, *ATTENDED], ["int8", "float"]))
def test_masks_of_a_cache_are_free(name: str, precision: str, tmp_path: Path) -> None:
    model = model_of(name)
    if precision == "float":
        compiled: Any = qg.compile(model, num_threads=1)
    else:
        samples = [feeds_of(name, (1, 4, 5), seed) for seed in range(3)]
        compiled = qg.quantize_and_compile(model, samples, num_threads=1, progress=False)
        compiled.run(None, samples[0])
    if name in ATTENDED:  # its length is that of both together, which no declaration says
        compiled.run(None, feeds_of(name, (2, 3, 5), 1))
    compiled.export_onnx(tmp_path / "m.onnx")
    for info in onnx.load(tmp_path / "m.onnx").graph.input:
        assert all(dim.dim_param for dim in info.type.tensor_type.shape.dim[:2])
    agree = assert_equal_runs if precision == "float" else assert_near_runs
    for sizes in SIZES:
        agree(compiled, tmp_path / "m.onnx", feeds_of(name, sizes, 7))

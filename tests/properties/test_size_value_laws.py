"""Sizes of free dimensions as values: every shape gives what onnxruntime gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, parser

import quantglow as qg
from quantglow.support.arrays import Array
from tests.unit.importer.onnx.onnx_models import by_onnxruntime

BODIES = {
    "quotient": "n=Gather(s,zero) f=Cast<to=1>(n) y=Div(x,f)",
    "root": "n=Gather(s,zero) f=Cast<to=1>(n) r=Sqrt(f) y=Mul(x,r)",
    "second": "n=Gather(s,one) f=Cast<to=1>(n) y=Sub(x,f)",
    "product": "p=ReduceProd<keepdims=0>(s) f=Cast<to=1>(p) y=Div(x,f)",
    "all": "p=Size(x) f=Cast<to=1>(p) l=Log(f) m=Softmax(x) y=Mul(m,l)",
    "remainder": "n=Gather(s,zero) r=Mod(n,two) f=Cast<to=1>(r) y=Add(x,f)",
    "is one": "n=Gather(s,zero) c=Equal(n,one) m=Neg(x) y=Where(c,x,m)",
    "is two": "n=Gather(s,zero) c=Equal(n,two) m=Neg(x) y=Where(c,x,m)",
    "branch": "n=Gather(s,zero) c=Greater(n,two) y=If(c) <then_branch=t () => (float[N,M] o) "
    "{o=Neg(x)}, else_branch=e () => (float[N,M] p) {p=Exp(x)}>",
    "smallest": "n=Gather(s,zero) m=Min(n,two) f=Cast<to=1>(m) y=Mul(x,f)",
    "beyond": "n=Gather(s,zero) m=Max(n,two) r=Sub(m,n) f=Cast<to=1>(r) y=Add(x,f)",
    "share": "n=Gather(s,zero) q=Div(one,n) f=Cast<to=1>(q) y=Add(x,f)",
    "rest": "n=Gather(s,zero) c=Sub(n,two) q=Div(c,n) f=Cast<to=1>(q) y=Add(x,f)",
    "largest": "n=Gather(s,zero) m=Max(n,two) f=Cast<to=1>(m) y=Mul(x,f)",
    "mean": "z=Constant<value_ints=[0]>() m=ReduceMean<keepdims=1>(x,z) y=Sub(x,m)",
    "relu": "y=Relu(x)",
}
SHAPES = [(2, 3), (7, 5), (3, 3), (1, 4), (9, 4), (4, 1), (1, 1), (16, 3)]


def model(body: str) -> ModelProto:
    constants = "<int64 zero={0}, int64 one={1}, int64 two={2}>"
    text = f"g (float[N,M] x) => (float[N,M] y) {constants} {{ s=Shape(x) {BODIES[body]} }}"
    return parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]> {text}')


def drawn(shape: tuple[int, int]) -> Array:
    return np.random.default_rng(shape).normal(0, 1, shape).astype(np.float32)


@pytest.mark.slow_variants
@pytest.mark.parametrize("body", BODIES)
def test_every_shape_gives_what_onnxruntime_gives(body: str, tmp_path: Path) -> None:
    """By 1 to 3 threads, each shape as the first one, saved and loaded."""
    network = model(body)
    expected = {shape: by_onnxruntime(network, {"x": drawn(shape)}) for shape in SHAPES}
    for threads in (1, 2, 3):
        compiled = qg.compile(network, num_threads=threads)
        for shape in SHAPES[threads:] + SHAPES[:threads]:
            assert_near(compiled.run(None, {"x": drawn(shape)}), expected[shape])
        compiled.save(tmp_path / "model.qgm")
        loaded = qg.load(tmp_path / "model.qgm", num_threads=threads)
        for shape in SHAPES:
            assert_near(loaded.run(None, {"x": drawn(shape)}), expected[shape])


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("threads", [1, 2])
def test_joined_calls_give_what_onnxruntime_gives(body: str, threads: int) -> None:
    network = model(body)
    compiled: Any = qg.compile(network, num_threads=threads)
    compiled.run(None, {"x": drawn((2, 3))})
    try:
        queue = qg.InferQueue(compiled, 1, max_batch=16, max_delay=0.02)
    except qg.OptionError:
        return  # calls of this model are never joined
    shapes = [(1, 3)] * 4 + [(2, 3)] * 4 + [(3, 5)] * 3
    with queue:
        for _ in range(3):
            futures = [queue.submit({"x": drawn(shape)}) for shape in shapes]
            for shape, future in zip(shapes, futures, strict=True):
                assert_near(future.result(60), by_onnxruntime(network, {"x": drawn(shape)}))


def test_samples_that_do_not_depend_on_their_number_are_joined() -> None:
    def joins(body: str) -> bool:
        compiled: Any = qg.compile(model(body))
        compiled.run(None, {"x": drawn((2, 3))})
        return bool(compiled.has_independent_samples({"x": (4, 5)}, range(1, 5)))

    assert list(filter(joins, BODIES)) == ["second", "relu"]


@pytest.mark.parametrize("dims", ["N,N", "N,M,N"])
def test_a_symbol_may_stand_at_several_axes(dims: str) -> None:
    text = f"g (float[{dims}] x) => (float[{dims}] y) {{ y=Relu(x) }}"
    compiled = qg.compile(parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]> {text}'))
    for size in (2, 7, 1, 5):
        x = np.full((size,) * (1 + dims.count(",")), size, np.float32)
        np.testing.assert_array_equal(compiled(x), x)


def assert_near(actual: list[Array], expected: list[Array]) -> None:
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6, strict=True)


GRIDS = {
    "positions": "t=Slice(table,zeros,m,zeros) y=Add(x,t)",
    "range": "r=Range(zero,l,one) f=Cast<to=1>(r) y=Mul(x,f)",
    "token": "k=Concat<axis=0>(n,ones) e=Expand(word,k) y=Concat<axis=1>(e,x)",
    "by sample": "r=Range(zero,c,one) f=Cast<to=1>(r) u=Unsqueeze(f,ones) y=Add(x,u)",
}
"""Values that exporters compute of free sizes: all samples share them, but for the last."""


@pytest.mark.parametrize("form", GRIDS)
def test_grids_of_free_lengths_keep_no_batch_whole(form: str) -> None:
    table = ",".join(str(i % 7 - 3) for i in range(16))
    constants = (
        "<int64 zero={0}, int64 one={1}, int64[1] zeros={0}, int64[1] ones={1}, float[1] word={3}, "
        f"float[16] table={{{table}}}>"
    )
    sizes = "n=Shape<end=1>(x) m=Shape<start=1>(x) c=Squeeze(n) l=Squeeze(m)"
    text = f"g (float[N,M] x) => (float[N,K] y) {constants} {{ {sizes} {GRIDS[form]} }}"
    built = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]> {text}')
    for threads in (1, 2):
        compiled: Any = qg.compile(built, num_threads=threads)
        for shape in SHAPES:
            x = drawn(shape)
            assert_near(compiled.run(None, {"x": x}), by_onnxruntime(built, {"x": x}))
        joins = compiled.has_independent_samples({"x": (4, 5)}, range(1, 5))
        assert joins == (form != "by sample")

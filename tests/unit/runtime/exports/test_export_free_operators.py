"""``export_onnx`` of operators whose form depends on a free size: it stays free, and is right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import quantglow as qg
from quantglow.support.arrays import Array
from tests.unit.runtime.exports.test_export_free import assert_equal_runs
from tests.unit.runtime.exports.test_export_sizes import assert_near_runs

ROWS = "float[N,T,8] x"
IMAGES = "float[N,3,H,W] x"
CHANNELS = "float[N,C,H,W] x"

MODELS = {
    "GridSample": (
        f"{IMAGES}, float[N,A,B,2] grid",
        """y=GridSample<mode="linear",padding_mode="zeros">(x,grid)""",
    ),
    "GridSample bicubic": (
        f"{IMAGES}, float[N,A,B,2] grid",
        """y=GridSample<mode="cubic",padding_mode="border">(x,grid)""",
    ),
    "GridSample of its own size": (
        IMAGES,
        """s=Shape<start=0,end=1>(x) h=Shape<start=2>(x) z=Constant<value_ints=[2]>()
        full=Concat<axis=0>(s,z,h) g=Constant<value=float[1,2,3]{1,0,0.1,0,0.9,0}>()
        b=Constant<value_ints=[2,3]>() e=Concat<axis=0>(s,b) theta=Expand(g,e)
        one=Constant<value_ints=[3]>() t=Concat<axis=0>(s,one,h)
        grid=AffineGrid(theta,t) y=GridSample(x,grid)""",
    ),
    "CumSum": (ROWS, "axis=Constant<value_int=1>() y=CumSum(x,axis)"),
    "CumSum of integers": (
        "int64[N,T] x",
        "axis=Constant<value_int=1>() y=CumSum(x,axis)",
    ),
    "EyeLike": ("float[T,T] x", "e=EyeLike<k=1>(x) y=Add(x,e)"),
    "integer ReduceSum": (
        "int64[N,T] x",
        "axes=Constant<value_ints=[1]>() y=ReduceSum(x,axes)",
    ),
    "integer ReduceMean": (
        "int32[N,T] x",
        "axes=Constant<value_ints=[1]>() y=ReduceMean(x,axes)",
    ),
    "ReduceProd": (ROWS, "axes=Constant<value_ints=[1]>() y=ReduceProd(x,axes)"),
    "integer ReduceProd": ("int64[N,T] x", "axes=Constant<value_ints=[1]>() y=ReduceProd(x,axes)"),
    "GroupNormalization of free channels": (
        f"{CHANNELS}, float[C] s, float[C] b",
        "y=GroupNormalization<num_groups=2>(x,s,b)",
    ),
    "normalized groups of free channels": (
        CHANNELS,
        """shape=Shape(x) g=Constant<value_ints=[0,2,-1]>() r=Reshape(x,g)
        s=Constant<value=float[2]{1,1}>() b=Constant<value=float[2]{0,0}>()
        n=InstanceNormalization(r,s,b) y=Reshape(n,shape)""",
    ),
    "Gather of indices": (ROWS, "i=Constant<value_ints=[2,-1,0]>() y=Gather<axis=1>(x,i)"),
    "Gather of the last row": (ROWS, "i=Constant<value_int=-1>() y=Gather<axis=1>(x,i)"),
    "ScatterND": (
        f"{ROWS}, int64[K,2] i, float[K,8] u",
        "y=ScatterND(x,i,u)",
    ),
    "Resize to another map's size": (
        f"{IMAGES}, float[N,3,A,B] other",
        """s=Shape<end=2>(x) t=Shape<start=2>(other) size=Concat<axis=0>(s,t)
        r=Resize<mode="linear">(x,,,size) y=Add(r,other)""",
    ),
    "Resize with corners to another map's size": (
        f"{IMAGES}, float[N,3,A,B] other",
        """s=Shape<end=2>(x) t=Shape<start=2>(other) size=Concat<axis=0>(s,t)
        y=Resize<mode="linear",coordinate_transformation_mode="align_corners">(x,,,size)""",
    ),
    "Resize cubic to another map's size": (
        f"{IMAGES}, float[N,3,A,B] other",
        """s=Shape<end=2>(x) t=Shape<start=2>(other) size=Concat<axis=0>(s,t)
        y=Resize<mode="cubic">(x,,,size)""",
    ),
    "a pyramid": (
        IMAGES,
        """p=MaxPool<kernel_shape=[2,2],strides=[2,2],ceil_mode=1>(x)
        s=Shape(x) y0=Resize<mode="linear">(p,,,s) y=Add(x,y0)""",
    ),
    "Compress": (
        ROWS,
        """c=Constant<value=bool[3]{1,0,1}>() y=Compress<axis=1>(x,c)""",
    ),
    "CenterCropPad": (
        IMAGES,
        """s=Constant<value_ints=[6,6]>() y=CenterCropPad<axes=[2,3]>(x,s)""",
    ),
    "MeanVarianceNormalization": (IMAGES, "y=MeanVarianceNormalization<axes=[0,2,3]>(x)"),
    "GlobalLpPool": (IMAGES, "y=GlobalLpPool(x)"),
}

SIZES = [
    {"N": 2, "T": 7, "H": 6, "W": 9, "C": 4, "A": 5, "B": 11, "K": 3, "S": 4},
    {"N": 1, "T": 5, "H": 9, "W": 6, "C": 6, "A": 12, "B": 3, "K": 5, "S": 9},
    {"N": 3, "T": 12, "H": 5, "W": 5, "C": 2, "A": 5, "B": 5, "K": 1, "S": 1},
    {"N": 1, "T": 3, "H": 16, "W": 12, "C": 8, "A": 8, "B": 24, "K": 2, "S": 33},
]


def model_of(name: str) -> onnx.ModelProto:
    """The parsed model of a case."""
    inputs, nodes = MODELS[name]
    nodes = nodes.replace("ZEROS", ",".join(str(i % 7 / 7) for i in range(160)))
    outputs = "int64[R] y" if "int64" in inputs.split("x")[0] else "float[R] y"
    outputs = "int32[R] y" if "int32" in inputs.split("x")[0] else outputs
    text = f'<ir_version: 9, opset_import: ["" : 21]> g ({inputs}) => ({outputs}) {{ {nodes} }}'
    model = onnx.parser.parse_model(text)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return model


def feeds_of(model: onnx.ModelProto, sizes: dict[str, int], seed: int) -> dict[str, Array]:
    """Values of all inputs: numbers within [-1, 1] for grids, small indices for integers."""
    rng = np.random.default_rng(seed)
    feeds: dict[str, Array] = {}
    for info in model.graph.input:
        kind = info.type.tensor_type
        shape = [sizes[dim.dim_param] if dim.dim_param else dim.dim_value for dim in kind.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        if dtype.kind == "f":
            feeds[info.name] = np.clip(rng.normal(0, 0.5, shape), -1.2, 1.2).astype(dtype)
        else:
            feeds[info.name] = rng.integers(0, 1 if info.name == "i" else 3, shape).astype(dtype)
        if info.name == "l":
            feeds[info.name] += 1
    return feeds


INT8 = (
    *("GridSample", "CumSum", "GroupNormalization of free channels", "Gather of the last row"),
    *("Resize to another map's size", "a pyramid", "CenterCropPad", "MeanVarianceNormalization"),
)
CASES = [*((name, "float") for name in MODELS), *((name, "int8") for name in INT8)]
SLOW = {("GridSample bicubic", "float"), *((name, "int8") for name in INT8[:1] + INT8[2:6])}
"""A sampler with large kernels, and int8 operators that others stand for by default."""


@pytest.mark.slow_variants
@pytest.mark.parametrize(
    ("name", "precision"),
    [pytest.param(*case, marks=pytest.mark.slow if case in SLOW else ()) for case in CASES],
)
def test_the_sizes_of_an_operator_stay_free(name: str, precision: str, tmp_path: Path) -> None:
    model = model_of(name)
    if precision == "float":
        compiled: Any = qg.compile(model, num_threads=1)
    else:
        samples = [feeds_of(model, SIZES[0], seed) for seed in range(3)]
        compiled = qg.quantize_and_compile(model, samples, num_threads=1, progress=False)
    compiled.export_onnx(tmp_path / "m.onnx")
    exported = onnx.load(tmp_path / "m.onnx")
    for value, written in zip(model.graph.input, exported.graph.input, strict=True):
        dims = [info.type.tensor_type.shape.dim for info in (value, written)]
        assert [dim.dim_param for dim in dims[0]] == [dim.dim_param for dim in dims[1]]
    agree = assert_equal_runs if precision == "float" else assert_near_runs
    for sizes in SIZES:
        agree(compiled, tmp_path / "m.onnx", feeds_of(model, sizes, 7))

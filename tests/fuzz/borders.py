"""Other float types at the border of a model, which computes the same as its float32 core.

Inputs are drawn as float16, bfloat16 or float64 and cast to float32, results are cast back. The
outputs must be those of the core on the same values, converted, bit for bit, and an exported model
must declare the same types.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

import quantglow as qg
from quantglow.export.onnx.model import export_onnx
from quantglow.ir.graph.signature import DECLARED, numpy_type
from quantglow.support.arrays import Array
from tests.generators.onnx_models.float_types import with_casts
from tests.generators.onnx_models.models import Case

SHARE = 0.25
"""Share of cases whose borders are tried in other types."""


def drawn_border(model: onnx.ModelProto, rng: np.random.Generator) -> dict[str, str]:
    """A float type for some of the inputs and outputs of float32."""
    ends = [*model.graph.input, *model.graph.output]
    floats = [e.name for e in ends if e.type.tensor_type.elem_type == TensorProto.FLOAT]
    kinds = rng.choice(["", *DECLARED], len(floats))
    return {name: str(kind) for name, kind in zip(floats, kinds, strict=True) if kind}


def border_difference(case: Case, compile_: Callable[[onnx.ModelProto], Any]) -> str:
    """Difference between a model with declared types and its core in words, or an empty text."""
    rng = np.random.default_rng(len(case.model.SerializeToString()))
    names = [end.name for end in (*case.model.graph.input, *case.model.graph.output)]
    border = drawn_border(case.model, rng)
    if rng.random() > SHARE or not border or len(set(names)) < len(names):
        return ""
    typed, fed = with_casts(case.model, border), dict(case.samples[0])
    for name, kind in border.items():
        if name in fed:
            with np.errstate(over="ignore"):
                fed[name] = fed[name].astype(numpy_type(kind))
    compiled = compile_(typed)
    if isinstance(compiled, qg.FallbackModel):
        return ""
    results = compiled.run(None, fed)
    core = {name: array.astype(case.samples[0][name].dtype) for name, array in fed.items()}
    expected = compile_(case.model).run(None, core)
    return compared(case.model, border, expected, results) or exported_difference(compiled)


def compared(
    model: onnx.ModelProto, border: dict[str, str], expected: list[Array], actual: list[Array]
) -> str:
    """Outputs of the core beside those of the model with a border."""
    for end, w, f in zip(model.graph.output, expected, actual, strict=True):
        kind = numpy_type(border[end.name]) if end.name in border else w.dtype
        with np.errstate(over="ignore", invalid="ignore"):
            w = w.astype(kind)
        if f.dtype != kind or not np.array_equal(as_bits(w), as_bits(f)):
            return f"output {end.name} is {f.dtype}, wanted {kind}, or differs from the core's"
    return ""


def exported_difference(compiled: qg.CompiledModel) -> str:
    """Whether an exported model declares other types."""
    try:
        again = export_onnx(compiled.graph)
    except qg.ModelError:
        return ""  # some integer functions have no form in ONNX
    types = [e.type.tensor_type.elem_type for e in (*again.graph.input, *again.graph.output)]
    ends = (*compiled.get_inputs(), *compiled.get_outputs())
    expected = [onnx.helper.np_dtype_to_tensor_dtype(info.dtype) for info in ends]
    return "" if types == expected else f"exported: types {types}, wanted {expected}"


def as_bits(array: Array) -> Array:
    """An array that is equal where the values are, NaN included."""
    return np.nan_to_num(array.astype(np.float64), nan=-0.5) if array.dtype.kind in "fV" else array

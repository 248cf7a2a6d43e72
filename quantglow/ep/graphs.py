"""Graphs of onnxruntime as models, and arrays at addresses that C code gives."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from quantglow.ep.interface import CModel, CTensor
from quantglow.importer.onnx.source import Source, open_light
from quantglow.support.arrays import Array
from quantglow.support.pages import is_worth_paging, page


def array_at(address: int, shape: tuple[int, ...], onnx_type: int) -> Array:
    """The elements at an address, which lives as long as the call."""
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(onnx_type))
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if not nbytes:
        return np.zeros(shape, dtype)
    raw = memoryview((ctypes.c_char * nbytes).from_address(address))
    return np.frombuffer(raw, dtype).reshape(shape)


def input_arrays(tensors: Any, count: int) -> list[Array]:
    """The inputs of a call, where the caller has them."""
    read: list[CTensor] = [tensors[i] for i in range(count)]
    return [array_at(t.data, tuple(t.dims[: t.rank]), t.type) for t in read]


def read_model(model: CModel, *, is_kept: bool) -> Source:
    """The model of a graph; ``is_kept``: with copies of its weights, which onnxruntime may free."""
    proto = onnx.ModelProto.FromString(ctypes.string_at(model.model, model.nbytes))
    tensors = {tensor.name: tensor for tensor in proto.graph.initializer}
    weights = {}
    for weight in model.weights[: model.weight_count]:
        tensor = tensors[weight.name.decode()]
        weights[tensor.name] = array_at(weight.data, tuple(tensor.dims), tensor.data_type)
    return open_light(proto, _copies(weights) if is_kept else weights)


def _copies(weights: Mapping[str, Array]) -> dict[str, Array]:
    """Copies of arrays; of large ones in pages, so that programs have the only ones in memory."""
    is_large = is_worth_paging(array.nbytes for array in weights.values())
    paged = page(weights.values()) if is_large else None
    copies = [array.copy() for array in weights.values()] if paged is None else paged
    return dict(zip(weights, copies, strict=True))

"""A decoder in OpenVINO: weights compressed by NNCF, caches as states of the request."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.support.peer_runtimes import openvino_request
from tests.support.decoder import Array, Decoder

GROUP = 64


def is_installed() -> bool:
    return all(find_spec(name) is not None for name in ("openvino", "nncf"))


def write_compressed(model: onnx.ModelProto, config: Decoder, weights: str, path: Path) -> None:
    """Write a decoder in standard operators as OpenVINO's files ``path`` and ``.bin``: for one
    sequence, int4 in groups of 64, int8 with a scale for each channel, all layers."""
    import openvino
    from openvino import _offline_transformations as transformations

    onnx.save(model, path.with_suffix(".float.onnx"))
    core = openvino.Core().read_model(path.with_suffix(".float.onnx"))
    cache = [1, config.kv_heads, -1, config.head]
    core.reshape({i.any_name: [1, -1] if len(i.partial_shape) == 2 else cache for i in core.inputs})
    if weights != "float":
        core = compressed(core, weights)
    pairs = {f"past_key_values.{name}": f"present.{name}" for name in config.caches}
    transformations.apply_make_stateful_transformation(core, pairs)
    openvino.save_model(core, path, compress_to_fp16=False)
    path.with_suffix(".float.onnx").unlink()


def compressed(model: Any, weights: str) -> Any:
    """The model with weights of few bits."""
    import nncf

    if weights == "int8":
        return nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_SYM)
    mode = nncf.CompressWeightsMode.INT4_SYM
    return nncf.compress_weights(model, mode=mode, **int4_settings(GROUP))


def int4_settings(group: int) -> dict[str, Any]:
    """All layers in groups; products that have no whole groups stay float."""
    import nncf

    fallback = nncf.GroupSizeFallbackMode.IGNORE
    advanced = nncf.AdvancedCompressionParameters(group_size_fallback_mode=fallback)
    return {"group_size": group, "all_layers": True, "advanced_parameters": advanced}


def with_openvino(config: Decoder, path: str, threads: int) -> Callable[[], Any]:
    """A function that begins a text: it returns one that gives logits of further tokens."""
    request = openvino_request(Path(path).with_name("openvino.xml"), threads, dynamic=True)

    def start() -> Callable[[Array], Array]:
        request.reset_state()
        length = 0

        def step(tokens: Array) -> Array:
            nonlocal length
            shape = (1, config.kv_heads, length, config.head)
            feeds = config.feeds(tokens, {"past_key_values.0.key": np.empty(shape, np.float32)})
            del feeds["past_key_values.0.key"]
            length += tokens.shape[1]
            actual: Array = np.asarray(request.infer(feeds, share_inputs=True)[0])
            return actual

        return step

    return start

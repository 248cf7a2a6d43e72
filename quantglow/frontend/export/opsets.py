"""Models under another version of the standard operators."""

from __future__ import annotations

import onnx
from onnx import version_converter

from quantglow.errors import ModelError
from quantglow.frontend.nodes.folding import INFERENCE_FAILURES
from quantglow.frontend.onnxruntime.opset_downgrade import means_the_same
from quantglow.frontend.reading.proto import all_nodes, opset_of


def at_opset(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """The model with all nodes as ``opset`` has them; the same object if it is of that.

    Raises ``ModelError`` for operators that the newer version has no form for.
    """
    declared = opset_of(model)
    if declared == opset:
        return model
    if is_same_in(model, opset):
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        for stamp in copy.opset_import:
            if stamp.domain in ("", "ai.onnx"):
                stamp.version = opset
        return copy
    try:
        converted: onnx.ModelProto = version_converter.convert_version(model, opset)
    except (RuntimeError, *INFERENCE_FAILURES) as error:
        names = ", ".join(sorted(changed_in(model, opset)))
        raise ModelError(
            f"operators that stay as the model has them ({names}) changed between opset {declared} "
            f"and {opset}, in which the model is written, and onnx does not convert them: {error}. "
            f"Remedy: export the original with opset {opset}, and quantize that."
        ) from error
    return converted


def opset_for(model: onnx.ModelProto, least: int) -> int:
    """The oldest opset from ``least`` on that has the operators of the model, or that ONNX converts
    them to: runtimes may not read the newest one."""
    declared = opset_of(model)
    if declared <= least:
        return least
    return next(opset for opset in range(least, declared + 1) if is_same_in(model, opset))


def is_same_in(model: onnx.ModelProto, opset: int) -> bool:
    """Whether every operator of the model means the same in another version."""
    return not changed_in(model, opset)


def changed_in(model: onnx.ModelProto, opset: int) -> set[str]:
    """Operators of the model that mean something else in another version."""
    declared = opset_of(model)
    used = {node.op_type for node in all_nodes(model.graph.node) if node.domain in ("", "ai.onnx")}
    return {op for op in used if not means_the_same(op, max(declared, opset), min(declared, opset))}

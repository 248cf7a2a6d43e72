"""Saved models whose graph for all shapes was exchanged, with hashes that fit, as an attacker would
write them."""

from __future__ import annotations

import json
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

import quantglow as qg
from quantglow.runtime.saved import archives

HINT = 8
"""Number of elements for which the file says that its graph was made."""

HEAD = "graph 'h'\n'x': f32[{T}] = Input(tensor=TensorType('f32', ({T},)))\n"
"""First lines of a graph of one input of free length."""


def source() -> onnx.ModelProto:
    """``y = relu(x)`` for any number of elements."""
    ends = (
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["T"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["U"])],
    )
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", *ends)
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@cache
def _members() -> Mapping[str, bytes]:
    compiled = qg.compile(source(), num_threads=1)
    for length in (HINT, HINT + 2):
        compiled.run(None, {"x": np.zeros(length, np.float32)})
    with tempfile.TemporaryDirectory() as folder:
        compiled.save(Path(folder) / "m.qgm")
        with zipfile.ZipFile(Path(folder) / "m.qgm") as archive:
            return {name: archive.read(name) for name in archive.namelist()}


def forged(
    path: Path,
    body: str,
    conditions: Sequence[str] = (),
    hint: int = HINT,
    batch: str | None = None,
) -> Path:
    """A file at ``path`` whose graph for all lengths has these lines, conditions and this hint, and
    claims that this symbol counts samples."""
    members = dict(_members())
    free = json.loads(members["free.json"])
    free["general"][0] |= {"sizes": {"T": hint}, "conditions": list(conditions), "batch": batch}
    members["free.json"] = json.dumps(free).encode()
    members["general/0.txt"] = (body if body.startswith("graph") else HEAD + body).encode()
    manifest = json.loads(members.pop("manifest.json"))
    manifest["members"] = {name: archives.describe(data) for name, data in members.items()}
    manifest["sha256"] = archives.manifest_digest(manifest)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("manifest.json", json.dumps(manifest))
        for name, data in members.items():
            archive.writestr(name, data)
    return path

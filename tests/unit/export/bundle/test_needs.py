"""Functions that a program brings for a model are listed, and libm is not among them for int8."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import helper

import quantglow as qg
from quantglow.export.bundle.contents import Needs, needed_functions
from quantglow.support.errors import BackendError
from tests.support.small_network import small_model, small_samples

SMALL = ("cortex-m0plus", "cortex-m4", "rv64gc", "wasm32")


def roots() -> onnx.ModelProto:
    ends = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [4]) for n in ("x", "y")]
    graph = helper.make_graph(
        [helper.make_node("Sqrt", ["x"], ["y"])], "roots", *[[e] for e in ends]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def facts_of(compiled: Any, folder: Path, **options: Any) -> dict[str, Any]:
    compiled.export_bundle(folder, name="net", **options)
    return dict(json.loads((folder / "net.json").read_text()))


@pytest.mark.slow
def test_float_functions_of_c_are_listed(tmp_path: Path) -> None:
    facts = facts_of(qg.compile(roots()), tmp_path, target="cortex-m0plus")
    assert facts["needs"]["libm"] == ["sqrtf"]
    assert "It needs memcpy, memset; sqrtf" in (tmp_path / "net.h").read_text()
    assert "PUBLIC m)" in (tmp_path / "CMakeLists.txt").read_text()


@pytest.mark.slow_variants
@pytest.mark.parametrize("target", SMALL)
def test_int8_networks_need_no_libm(tmp_path: Path, target: str) -> None:
    samples = small_samples()
    compiled: Any = qg.quantize_and_compile(
        small_model(), samples, progress=False, quantize_output=True
    )
    options = {"quantize_input": True, "quantize_output": True}
    needs = facts_of(compiled, tmp_path, target=target, **options)["needs"]
    assert needs["libm"] == []
    assert set(needs["compiler"]) <= {"__aeabi_uidiv"}


def test_a_function_that_no_program_has_is_an_error() -> None:
    assert needed_functions(["memcpy", "sqrtf", "__divdi3"], False) == Needs(
        ("sqrtf",), (), ("__divdi3",)
    )
    with pytest.raises(BackendError, match="sqrtf"):
        needed_functions(["memcpy", "sqrtf"], True)
    with pytest.raises(BackendError, match="puts"):
        needed_functions(["puts"], False)

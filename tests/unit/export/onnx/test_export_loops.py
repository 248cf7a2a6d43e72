"""Exported loops of int8 models load in onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import quantglow as qg
from quantglow.export.onnx.shape import MOVES
from quantglow.importer.onnx.resolvers.external import captured_names
from tests.unit.runtime.exports.test_export_free import session_of

MODEL = """<ir_version: 9, opset_import: ["" : 17]> g (float[20,8] x) => (float[4] y, float[16,8] z)
    <float[8,8] w = {WEIGHTS}, float[4] zeros = {0,0,0,0}> {
        m=MatMul(x,w) r=Relu(m)
        a=Constant<value_ints=[2,1]>() b=Constant<value_ints=[18,5]>()
        axes=Constant<value_ints=[0,1]>() part=Slice(r,a,b,axes)
        c=Constant<value_ints=[4]>() d=Constant<value_ints=[20]>() e=Constant<value_ints=[0]>()
        z=Slice(r,c,d,e)
        y=Scan<num_scan_inputs=1,body=step (float[4] s, float[4] row) => (float[4] t) {
            h=Tanh(s) t=Add(h,row)
        }>(zeros,part)
    }"""


@pytest.mark.slow
def test_bodies_read_nothing_behind_which_dequantize_linear_may_be_moved(tmp_path: Path) -> None:
    """onnxruntime ends the process over that, so it is looked for before a session is opened."""
    numbers = ",".join(str((i * 5 % 13 - 6) / 9) for i in range(64))
    model = onnx.parser.parse_model(MODEL.replace("WEIGHTS", numbers))
    rng = np.random.default_rng(0)
    samples = [rng.normal(size=(20, 8)).astype(np.float32) for _ in range(4)]
    compiled = qg.quantize_and_compile(model, samples, num_threads=1, progress=False)
    compiled.export_onnx(tmp_path / "m.onnx")
    graph = onnx.load(tmp_path / "m.onnx").graph
    assert "QuantizeLinear" in {node.op_type for node in graph.node}
    makers = {name: node.op_type for node in graph.node for name in node.output}
    (body,) = [a.g for node in graph.node if node.op_type == "Loop" for a in node.attribute]
    read = {makers.get(name) for name in captured_names(body)}
    assert "Max" in read and not read & {*MOVES}
    results = session_of(tmp_path / "m.onnx").run(None, {"x": samples[0]})
    for result, expected in zip(results, compiled.run(None, {"x": samples[0]}), strict=True):
        np.testing.assert_allclose(result, expected, atol=0.05)


def test_results_that_nobody_reads_have_names(tmp_path: Path) -> None:
    """onnxruntime does not load a Scan whose state has none."""
    text = """<ir_version: 9, opset_import: ["" : 17]> g (float[5,4] x) => (float[5,4] y)
        <float[4] zeros = {0,0,0,0}> {
            last,y=Scan<num_scan_inputs=1,body=step (float[4] s, float[4] row)
                => (float[4] t, float[4] u) { h=Hardmax(row) t=Add(s,h) u=Identity(t) }>(zeros,x)
        }"""
    model = onnx.parser.parse_model(text)
    model.graph.node[0].output[0] = ""
    compiled = qg.compile(model, num_threads=1)
    compiled.export_onnx(tmp_path / "m.onnx")
    nodes = onnx.load(tmp_path / "m.onnx").graph.node
    loops = [node for node in nodes if any(a.HasField("g") for a in node.attribute)]
    assert loops and all(all(node.output) for node in loops)
    x = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    (result,) = session_of(tmp_path / "m.onnx").run(None, {"x": x})
    np.testing.assert_allclose(result, compiled(x), atol=1e-5)

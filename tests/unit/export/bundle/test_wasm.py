"""Modules of WebAssembly compute the interpreter's integers in Node, wasmtime and Chromium."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantglow as qg
from quantglow.export.bundle import BundleCode, BundledModel, build_contents, writer
from quantglow.export.bundle.constants import Placement
from quantglow.export.bundle.exporter import emit
from quantglow.support.arrays import Array
from quantglow.support.errors import BackendError
from tests.support.browser import BROWSER, answer_of_page
from tests.support.small_network import small_model, small_samples
from tests.unit.export.bundle.test_needs import roots

HAS_LINKER = next(writer.programs("wasm-ld"), None) is not None
needs_linker = pytest.mark.skipif(not HAS_LINKER, reason="no wasm-ld: `make cross-setup`")
needs_node = pytest.mark.skipif(not shutil.which("node"), reason="node is not installed")

SEVERAL = """
import { compile, load, facts } from "./net.mjs";
const module = await compile();
const [one, two] = [await load(module), await load(module)];
const samples = JSON.parse(process.argv[2]).map((x) => Float32Array.from(x));
const first = one.run({ x: samples[0] });
const second = two.run({ x: samples[1] });
const again = one.run({ x: samples[1] });
const values = (y) => facts.outputs.map((o) => [...y[o.name]]);
console.log(JSON.stringify([first, second, again].map(values)));
"""
WRONG = """
import { load } from "./net.mjs";
const model = await load();
for (const x of [undefined, [1], new Int8Array(72), new Float32Array(71)]) {
  try { model.run({ x }); console.log("accepted"); }
  catch (error) { console.log(`${error.name}: ${error.message}`); }
}
"""
PAGE = """<!doctype html>
<script type="module">
const answer = async (text) => fetch("/answer", { method: "POST", body: text });
try {
  const { load, facts } = await import("./net.mjs");
  const samples = await (await fetch("/samples.json")).json();
  const model = await load();
  const found = samples.map((x) => model.run({ x: Float32Array.from(x) }));
  await answer(JSON.stringify(found.map((y) => facts.outputs.map((o) => [...y[o.name]]))));
} catch (error) { await answer(JSON.stringify(String(error))); }
</script>
"""


@pytest.fixture(scope="module")
def compiled() -> Any:
    return qg.quantize_and_compile(small_model(), small_samples(), progress=False)


@pytest.fixture(scope="module")
def folder(compiled: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wasm")
    compiled.export_bundle(folder, name="net", target="wasm32", library="shared")
    return folder


def expected(compiled: Any, samples: list[Array]) -> list[list[list[float]]]:
    """The values of each output of each sample."""
    results = [qg.interpret(compiled.graph, {"x": x}) for x in samples]
    return [[y.ravel().tolist() for y in row] for row in results]


def in_node(folder: Path, text: str, *arguments: str) -> str:
    (folder / "use.mjs").write_text(text)
    command = ["node", "use.mjs", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
@needs_linker
@needs_node
def test_instances_in_node_have_memory_of_their_own(compiled: Any, folder: Path) -> None:
    samples = small_samples()[:2]
    text = json.dumps([x.ravel().tolist() for x in samples])
    reference = expected(compiled, samples)
    assert json.loads(in_node(folder, SEVERAL, text)) == [*reference, reference[1]]


@needs_linker
@needs_node
def test_wrong_inputs_are_named(folder: Path) -> None:
    said = in_node(folder, WRONG).splitlines()
    shown = 'input "x" is a Float32Array of 72 elements, not'
    kinds = ("undefined", "Array", "Int8Array")
    assert said == [*(f"TypeError: {shown} {k}" for k in kinds), f"RangeError: {shown} of 71"]


@needs_linker
def test_wasmtime_runs_the_module_without_imports(compiled: Any, folder: Path) -> None:
    wasmtime = pytest.importorskip("wasmtime", reason="`make cross-setup` installs wasmtime")
    facts = json.loads((folder / "net.json").read_text())
    store = wasmtime.Store()
    module = wasmtime.Module.from_file(store.engine, str(folder / "net.wasm"))
    assert [e.name for e in module.exports] == ["memory", "net_run", "__heap_base"]
    exports = wasmtime.Instance(store, module, []).exports(store)
    memory, end, x = exports["memory"], exports["__heap_base"].value(store), small_samples()[1]
    ends = [*facts["inputs"], *facts["outputs"]]
    places = []
    for nbytes in (facts["arena"]["nbytes"], *(tensor["nbytes"] for tensor in ends), 64):
        places.append(-(-end // 64) * 64)
        end = places[-1] + nbytes
    memory.grow(store, -(-end // 65536))
    arena, inputs, *outputs, pointers = places
    memory.write(store, np.array([inputs, *outputs], "<u4").tobytes(), pointers)
    memory.write(store, x.tobytes(), inputs)
    assert exports["net_run"](store, arena, pointers, pointers + 4) == 0
    for y, at in zip(qg.interpret(compiled.graph, {"x": x}), outputs, strict=True):
        assert memory.read(store, at, at + y.nbytes) == y.tobytes()


@pytest.mark.slow
@needs_linker
@pytest.mark.skipif(not BROWSER, reason="no Chromium: `make cross-setup` installs it")
def test_a_page_in_chromium_computes_the_same(compiled: Any, folder: Path) -> None:
    samples = small_samples()
    (folder / "index.html").write_text(PAGE)
    (folder / "samples.json").write_text(
        json.dumps([[float(v) for v in x.ravel()] for x in samples])
    )
    assert json.loads(answer_of_page(folder)) == expected(compiled, samples)


def test_a_missing_linker_is_named(
    compiled: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "programs", lambda name: iter(()))
    with pytest.raises(BackendError, match="install lld, or `pip install ziglang`"):
        compiled.export_bundle(tmp_path / "net", target="wasm32", library="shared")
    assert not (tmp_path / "net").exists()


@pytest.mark.slow
def test_objects_that_need_functions_of_c_are_refused() -> None:
    """No kernel for wasm32 needs one; this object is that of a processor without square roots."""
    compiled: Any = qg.compile(roots())
    code = BundleCode((emit(compiled.graph, "cortex-m0plus"),))
    with pytest.raises(BackendError, match=r"no library, and the model calls .*sqrtf"):
        writer.wasm_module(build_contents(BundledModel("net", "", False), code, Placement.OBJECT))

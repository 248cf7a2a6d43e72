"""A process to which Linux refuses AMX tiles never executes an instruction of them: the JIT takes
vectors, or says why not; bundles return an error.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import quantglow as qg
from quantglow.codegen.llvm.targets import LEVELS, resolve, runs_here
from quantglow.export.bundle.run_functions import REFUSED, UNSUPPORTED
from tests.unit.importer.onnx.onnx_models import floats, model_of

AMX = "amx-int8"
VECTORS = "avx512vnni"
"""The level whose features a bundle with tiles looks for before it asks Linux for tiles."""
SAMPLE = floats(1, 64, 14, 14)
TDPBUSD = re.compile(rb"\xc4\xe2.\x5e", re.DOTALL)
"""The instruction that multiplies tiles."""
ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64",
    reason="a system call of x86-64 Linux",
)

REFUSING = """
from tests.support.refused_tiles import refuse_tiles
refuse_tiles()
"""

BEGIN = """
import ctypes, json, sys
import numpy as np
"""

ASK = """
from quantglow.codegen.llvm.isa.x86.features import request_tiles
print(json.dumps(request_tiles()))
"""

JIT = """
import quantglow as qg
from quantglow.codegen.llvm.targets import resolve
path, sample = sys.argv[1:]
found = {"native": resolve("native").name}
for name, options in {"plain": {}, "use": {"code": "use"}, "require": {"code": "require"},
                      "amx": {"target": "amx-int8"}}.items():
    try:
        model = qg.load(path, num_threads=1, **options)
    except qg.QuantglowError as error:
        found[name] = f"{type(error).__name__}: {error}"
    else:
        found[name] = [output.tobytes().hex() for output in model.run(None, {"x": np.load(sample)})]
print(json.dumps(found))
"""

BUNDLE = """
folder, sample = sys.argv[1:]
library = ctypes.CDLL(f"{folder}/libnet.so")
facts = json.load(open(f"{folder}/net.json"))
x = np.load(sample)
outputs = [np.full(2**17, 7, np.uint8) for _ in facts["outputs"]]
memory = np.zeros(facts["arena"]["nbytes"] + 64, np.uint8)
arena = ctypes.c_void_p(memory.ctypes.data + -memory.ctypes.data % 64)
def pointers(arrays):
    return (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
barrier = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda user: None)
observer = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_int)(lambda *_: None)
ends = arena, pointers([x]), pointers(outputs)
results = [
    library.net_run(*ends),
    library.net_run_observed(*ends, observer, None),
    library.net_run_part(*ends, 0, 1, barrier, None),
]
print(json.dumps([results, all((output == 7).all() for output in outputs)]))
"""


def child(program: str, *arguments: object, first: str = REFUSING) -> Any:
    """The result of a program in a process without tiles."""
    words = [sys.executable, "-c", first + BEGIN + program, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(words, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")
    return json.loads(ran.stdout)


def tiled_model() -> onnx.ModelProto:
    """A convolution that is computed with tiles."""
    weights = numpy_helper.from_array(floats(64, 64, 3, 3) / 24, "w")
    conv = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
    return model_of([conv], {"x": SAMPLE}, ["y"], [weights])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with code for this processor, a bundle with tiles, and a sample."""
    folder = tmp_path_factory.mktemp("refused")
    model = qg.quantize_and_compile(tiled_model(), [SAMPLE], num_threads=1, progress=False)
    model.save(folder / "net.qgm", include_code="native")
    model.export_bundle(folder, name="net", target=AMX, library="shared")
    np.save(folder / "x.npy", SAMPLE)
    return folder


def test_linux_refuses_tiles() -> None:
    assert child(ASK) > 0


@pytest.mark.slow
def test_the_jit_takes_vectors_or_says_why_not(folder: Path) -> None:
    """Code of a file for this processor and kernels in the cache do not run, either."""
    loaded = qg.load(folder / "net.qgm", num_threads=1).run(None, {"x": SAMPLE})
    bits = [output.tobytes().hex() for output in loaded]
    actual = child(JIT, folder / "net.qgm", folder / "x.npy")
    others = [level for level in LEVELS if level != AMX]
    assert actual["native"] == next(level for level in others if runs_here(level))
    assert actual["plain"] == actual["use"] == bits
    assert actual["amx"].startswith(f"BackendError: target {AMX!r} does not run here")
    if resolve("native").name == AMX:
        assert "Linux refuses AMX tiles to this process (Operation not permitted)" in actual["amx"]
        assert actual["require"].startswith("FileFormatError: the code in")
    else:
        assert actual["require"] == bits


def test_a_bundle_returns_an_error_and_writes_nothing(folder: Path) -> None:
    assert TDPBUSD.search((folder / "net.o").read_bytes())
    expected = REFUSED if runs_here(VECTORS) else UNSUPPORTED
    assert child(BUNDLE, folder, folder / "x.npy") == [[expected] * 3, True]
    if runs_here(AMX):
        assert child(BUNDLE, folder, folder / "x.npy", first="") == [[0] * 3, False]

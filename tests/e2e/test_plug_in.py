"""The plug-in in processes of its own: versions of onnxruntime, forks, ends, wheel, node tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from quantglow import ep
from tests.support.plug_in import PACKAGE, STRICT, build, session
from tools.conformance import as_fed, cases

ROOT = Path(__file__).parents[2]

START = """
import sys, numpy as np, onnxruntime as ort
sys.path.insert(0, sys.argv[1])
import onnxruntime_ep_quantglow as plug_in
plug_in.get_library_path = lambda: sys.argv[2]
from quantglow import ep
x = np.random.default_rng(0).random((1, 1, 28, 28), np.float32)
def opened(name="mnist_cnn.onnx", threads=1, stored="", embed="1", **more):
    path = name if "/" in name else f"{sys.argv[3]}/datasets/{name}"
    devices = [d for d in ort.get_ep_devices() if d.ep_name == plug_in.EP_NAME]
    options = ort.SessionOptions()
    if stored:
        for key, value in {"enable": "1", "file_path": stored, "embed_mode": embed}.items():
            options.add_session_config_entry("ep.context_" + key, value)
    options.add_provider_for_devices(devices, {"num_threads": str(threads), **more})
    session = ort.InferenceSession(path, options)
    session.disable_fallback()
    return session
def run(session):
    return session.run(None, {session.get_inputs()[0].name: x})[0]
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("plug_in"))


def python(library: Path, script: str, path: Path | None = None) -> str:
    """The output of a process that runs a script; ``path``: packages that come before others."""
    places = [str(ROOT)] if path is None else [str(path), str(ROOT)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
    command = [sys.executable, "-c", START + script, str(PACKAGE), str(library), str(ROOT)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr[-2000:]
    return result.stdout


SHARE_ALL = """
from quantglow.runtime.native import executable
executable.SERIAL_WORK = executable.SERIAL_PROGRAM = 0.0
"""
"""Lets threads share the calls of a small network."""

SLOWLY = """
import threading
from quantglow.runtime.shapes.free_shapes import FreeShapes
compile_at, event = FreeShapes.compile_at, threading.Event()
def wait(self, feeds):
    event.wait(SECONDS)
    return compile_at(self, feeds)
FreeShapes.compile_at = wait
"""
"""Lets programs be compiled after so many ``SECONDS``, or an event."""


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_a_process_that_ends_with_a_live_session_ends_well(library: Path, threads: int) -> None:
    script = f"""
plug_in.register(); s = opened(threads={threads}); run(s); print(ep.counts()["native"])
"""
    assert python(library, SHARE_ALL + script) == "1\n"


@pytest.mark.slow
def test_a_session_outlives_its_registration(library: Path) -> None:
    script = """
plug_in.register(); s = opened(); before = run(s)
ort.unregister_execution_provider_library(plug_in.EP_NAME)
print(np.array_equal(run(s), before))
"""
    assert python(library, script) == "True\n"


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_a_forked_child_runs_sessions_and_opens_new_ones(library: Path, threads: int) -> None:
    script = f"""
import os
plug_in.register(); s = opened(threads={threads}); before = run(s)
child = os.fork()
if child == 0:
    new = opened(threads={threads})
    fine = all(np.array_equal(run(each), before) for each in (s, new, s, new))
    os._exit(0 if fine else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), np.array_equal(run(s), before))
"""
    assert python(library, SHARE_ALL + script) == "0 True\n"


@pytest.mark.slow
@pytest.mark.parametrize("is_child", [False, True])
def test_a_process_ends_well_while_onnxruntime_answers(library: Path, is_child: bool) -> None:
    """Also a child that was forked meanwhile, which has no thread that compiles, and its parent."""
    script = f"""
import os
SECONDS = {1.0 if is_child else 0.1}
plug_in.register(); s = opened("ppocr_cls.onnx", threads=2, while_compiling="onnxruntime")
x = np.random.default_rng(0).random((2, 3, 48, 64), np.float32)
before = run(s)
child = os.fork() if {is_child} else None
fine = np.allclose(run(s), before, atol=1e-4)
if child:
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
elif child == 0:
    event.set()
    while not ep.counts()["native"] and fine:
        fine = np.allclose(run(s), before, atol=1e-4)
    os._exit(0 if fine else 1)
print(fine, ep.counts()["onnxruntime"] > 0)
"""
    assert python(library, SLOWLY + script) == ("0\n" if is_child else "") + "True True\n"


@pytest.mark.slow
def test_sessions_of_two_hundred_turns_leave_no_memory(library: Path) -> None:
    script = """
import gc
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
plug_in.register()
for turn in range(200):
    s = opened("mnist_cnn_nncf.onnx"); run(s); del s
    if turn == 40: gc.collect(); first = resident()
gc.collect(); print((resident() - first) // 2**20)
s = opened(); run(s); first = resident()
for _ in range(100_000): run(s)
print((resident() - first) // 2**20)
"""
    sessions, runs = map(int, python(library, script).split())
    assert sessions < 24 and runs < 4


@pytest.mark.slow
def test_packages_that_ask_for_the_cpu_alone_get_the_provider(library: Path) -> None:
    """But for the sessions that quantglow makes itself, which would come back to it."""
    script = """
plain = run(ort.InferenceSession(f"{sys.argv[3]}/datasets/mnist_cnn.onnx"))
plug_in.use(num_threads=1, while_compiling="onnxruntime"); plug_in.use()
for providers in (None, ["CPUExecutionProvider"]):
    s = ort.InferenceSession(f"{sys.argv[3]}/datasets/mnist_cnn.onnx", providers=providers)
    print(s.get_providers()[0], np.abs(run(s) - plain).max() < 1e-4)
from quantglow.ort.session import open_session
model = open(f"{sys.argv[3]}/datasets/mnist_cnn.onnx", "rb").read()
print(open_session(model, 1).session.get_providers())
"""
    said = python(library, script)
    assert said.count("QuantglowExecutionProvider True") == 2
    assert said.endswith("['CPUExecutionProvider']\n")


@pytest.mark.slow
def test_the_cache_is_where_a_session_says(library: Path, tmp_path: Path) -> None:
    script = f"""
import os
os.environ["QUANTGLOW_CACHE_DIR"] = "{tmp_path}/environment"
plug_in.register(); run(opened(cache_folder="{tmp_path}/chosen"))
run(opened()); run(opened(cache_folder="{tmp_path}/chosen"))
try:
    opened(cache_folder="{tmp_path}/other")
except Exception as error:
    print("one cache" in str(error))
"""
    assert python(library, script) == "True\n"
    assert [folder.name for folder in tmp_path.iterdir()] == ["chosen"]
    assert list((tmp_path / "chosen" / "kernels").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("most_programs", [2, 64])
def test_calls_of_many_threads_share_no_memory(tmp_path: Path, most_programs: int) -> None:
    """The C code of calls, between stand-ins for onnxruntime and quantglow that are looked at by
    the compiler's thread sanitizer."""
    program, sources = tmp_path / "races", PACKAGE / "src"
    parts = [sources / f"{name}.c" for name in ("compute", "parallel", "own_kernels", "slots")]
    headers = [f"-I{sources}", f"-I{PACKAGE / 'vendor' / 'onnxruntime'}"]
    flags = ["-std=c11", "-D_GNU_SOURCE", "-O1", "-g", "-fsanitize=thread", *STRICT, *headers]
    flags.append(f"-DMOST_PROGRAMS={most_programs}")
    driver = ROOT / "tests" / "support" / "plug_in_races.c"
    command = ["cc", *flags, str(driver), *map(str, parts), "-o", str(program), "-lpthread"]
    compiled = subprocess.run(command, capture_output=True, text=True)
    if "tsan" in compiled.stderr and "cannot find" in compiled.stderr:
        pytest.skip("the C compiler has no thread sanitizer")
    assert compiled.returncode == 0, compiled.stderr
    # The sanitizer of older compilers wants addresses that are not random.
    result = subprocess.run(["setarch", "-R", str(program)], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-3000:]


def installed(folder: Path, *packages: str) -> Path:
    """A folder with packages of other versions than those of the tests."""
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder)]
    result = subprocess.run([*command, *packages], capture_output=True, text=True)
    if result.returncode and "http" in result.stderr and "No matching" not in result.stderr:
        pytest.skip(f"onnxruntime cannot be downloaded: {result.stderr[-300:]}")
    assert result.returncode == 0, result.stderr[-1000:]
    return folder


@pytest.mark.slow
def test_the_oldest_version_of_onnxruntime_takes_the_same_library(
    library: Path, tmp_path: Path
) -> None:
    path = installed(tmp_path, "onnxruntime==1.24.4")
    script = f"""
plug_in.register(); fine = np.array_equal(run(opened()), run(opened(threads=2)))
print(ort.__version__, fine, ep.counts()["native"])
s = opened("ppocr_cls.onnx", while_compiling="onnxruntime"); SECONDS = 0.2
x = np.random.default_rng(0).random((2, 3, 48, 64), np.float32)
before = run(s); print(ep.counts()["native"], ep.counts()["onnxruntime"])
while ep.counts()["native"] == 2: fine = np.allclose(run(s), before, atol=1e-4)
print(fine)
stored = {str(tmp_path / "stored.onnx")!r}
expected = run(opened("ppocr_cls.onnx", stored=stored, shapes="x:2x3x48x64"))
print(np.array_equal(run(opened(stored)), expected))
"""
    expected = "1.24.4 True 2\n2 1\nTrue\nTrue\n"
    assert python(library, SHARE_ALL + SLOWLY + script, path) == expected


@pytest.mark.slow
def test_an_older_version_is_refused_with_the_reason(library: Path, tmp_path: Path) -> None:
    path = installed(tmp_path, "onnxruntime==1.23.2")
    script = """
try:
    plug_in.register()
except Exception as error:
    print(error)
print(ort.get_available_providers()[-1])
"""
    said = python(library, script, path)
    assert "needs onnxruntime 1.24" in said and said.endswith("CPUExecutionProvider\n")


@pytest.mark.slow
def test_the_wheel_has_the_library(tmp_path: Path) -> None:
    source = tmp_path / "source"  # pip builds in the folder that it gets
    shutil.copytree(PACKAGE, source, ignore=shutil.ignore_patterns("build", "*.so", "*.egg-info"))
    path = installed(tmp_path / "installed", str(source))
    library = path / "onnxruntime_ep_quantglow" / "libquantglow_ep.so"
    assert 20_000 < library.stat().st_size < 200_000
    script = "plug_in.register(); print(len(run(opened())))"
    assert python(library, script, path) == "1\n"


def outcome(case: Any) -> str:
    """The outcome of a case of ONNX's node tests."""
    inputs, outputs = case.data_sets[0]
    arrays = [as_fed(value) for value in (*inputs, *outputs)]
    if any(not isinstance(array, np.ndarray) or array.dtype.kind in "OUV" for array in arrays):
        return "other kinds"  # strings, sequences, and types that onnxruntime feeds by no array
    feeds = dict(zip([end.name for end in case.model.graph.input], arrays, strict=False))
    before = ep.counts()["compiles"]
    try:
        opened = session(case.model)
        actual = opened.run(None, feeds)
    except Exception as error:  # noqa: BLE001 - onnxruntime has no kernel, which is no fault of ours
        return "refused" if ep.counts()["compiles"] == before else f"failed: {error}"
    if ep.counts()["compiles"] == before:
        return "left"
    return "right" if all(map(is_near, actual, arrays[len(inputs) :])) else "wrong"


def is_near(actual: Any, expected: Any) -> bool:
    one, other = np.asarray(actual), np.asarray(expected)
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.dtype.kind in "fV":
        pair = one.astype(np.float64), other.astype(np.float64)
        return bool(np.allclose(*pair, rtol=1e-3, atol=1e-5, equal_nan=True))
    return np.array_equal(one, other)


@pytest.mark.slow
def test_node_tests_are_right_where_nodes_are_claimed() -> None:
    outcomes: dict[str, list[str]] = {}
    for case in cases():
        outcomes.setdefault(outcome(case), []).append(case.name)
    others = outcomes.keys() - {"right", "left", "refused", "other kinds"}
    assert not others, {key: outcomes[key][:5] for key in others}
    assert len(outcomes["right"]) > 1000


def program(folder: Path, language: str) -> list[str]:
    """The command of a program without Python, compiled as C or as C++."""
    runtime = Path(onnxruntime.__file__).parent / "capi"
    (library,) = runtime.glob("libonnxruntime.so.*")
    source = ROOT / "tests" / "support" / "plug_in_main.c"
    path = folder / f"program-{language}"
    compiler = ["cc", "-std=c11", "-D_GNU_SOURCE"] if language == "c" else ["c++", "-x", "c++"]
    headers = f"-I{PACKAGE / 'vendor' / 'onnxruntime'}"
    (folder / "libonnxruntime.so.1").symlink_to(library)  # as programs look for it
    command = [*compiler, "-Wall", "-Wextra", "-Werror", headers, str(source), "-x", "none"]
    command += [str(library), f"-Wl,-rpath,{folder}", "-o", str(path)]
    subprocess.run(command, check=True)
    return [str(path)]


@pytest.mark.slow
@pytest.mark.parametrize("language", ["c", "c++"])
@pytest.mark.parametrize("is_embedded", [True, False])
def test_a_program_without_python_runs_a_stored_model(
    library: Path, language: str, is_embedded: bool, tmp_path: Path
) -> None:
    """Its results are those of the session that stored it; elsewhere it has to be trusted."""
    script = f"""
import os
os.environ["QUANTGLOW_CACHE_DIR"] = {str(tmp_path / "cache")!r}
plug_in.register()
stored = {str(tmp_path / "m.onnx")!r}
session = opened("mnist_cnn_nncf.onnx", stored=stored, embed={str(int(is_embedded))!r})
run(session).tofile({str(tmp_path / "expected")!r})
x.tofile({str(tmp_path / "input")!r})
"""
    python(library, script)
    files = [str(tmp_path / name) for name in ("m.onnx", "input", "actual")]
    command = [*program(tmp_path, language), str(library), *files, "20"]

    def run(cache: str, *entries: str) -> subprocess.CompletedProcess[str]:
        environment = {"QUANTGLOW_CACHE_DIR": str(tmp_path / cache)}
        words = [*command, *entries]
        return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60)

    for words in (("cache",), ("other", "trust_code=1")):
        ran = run(*words)
        assert ran.returncode == 0, ran.stderr
        assert "compatible 1, another one 0\n" in ran.stdout
        actual = np.fromfile(tmp_path / "actual", np.float32)
        np.testing.assert_array_equal(actual, np.fromfile(tmp_path / "expected", np.float32))
        (tmp_path / "actual").unlink()
    refused = run("other")
    assert refused.returncode == 1
    assert "trust_code=1" in refused.stderr

"""quantglow's linker loads objects of kernels, and leaves all others to LLVM's."""

from __future__ import annotations

import ctypes
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantglow.codegen.llvm.cache import ENVIRONMENT, ObjectCache
from quantglow.codegen.llvm.compiler import compile_text, link_by_llvm
from quantglow.codegen.llvm.targets import resolve
from quantglow.runtime.jit import linker
from quantglow.runtime.jit.library import KernelLibrary
from quantglow.runtime.jit.linker import UnlinkableError

CONSTANTS = """
@weights = private constant [4 x i64] [i64 2, i64 3, i64 5, i64 7], align 32
define i64 @f(i64 %i) nounwind {
  %p = getelementptr [4 x i64], ptr @weights, i64 0, i64 %i
  %w = load i64, ptr %p
  %r = call i64 @g(i64 %w)
  ret i64 %r
}
define internal i64 @g(i64 %w) nounwind noinline {
  %r = mul i64 %w, 100
  ret i64 %r
}
"""
C_CALL = """
declare double @hypot(double, double)
define double @f(double %x, double %y) nounwind {
  %r = call double @hypot(double %x, double %y)
  ret double %r
}
"""
COUNTER = """
@counter = internal global i64 41
define i64 @f() nounwind {
  %old = load i64, ptr @counter
  %new = add i64 %old, 1
  store i64 %new, ptr @counter
  ret i64 %new
}
"""
UNKNOWN = C_CALL.replace("hypot", "no_such_function")


LINKING = resolve("native").isa.linking
pytestmark = pytest.mark.skipif(LINKING is None, reason="this processor's objects go to LLVM")


def linked(objects: dict[str, bytes]) -> dict[str, int]:
    return linker.link(objects, LINKING)


def object_of(text: str) -> bytes:
    return compile_text(resolve("native"), text)


def test_code_reaches_its_constants_and_its_functions() -> None:
    objects = {"f": object_of(CONSTANTS)}
    f = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(linked(objects)["f"])
    assert [f(i) for i in range(4)] == [200, 300, 500, 700]


def test_objects_of_one_image_keep_their_own_constants() -> None:
    other = CONSTANTS.replace("i64 2", "i64 11").replace("@f", "@f2")
    actual = linked({"f": object_of(CONSTANTS), "f2": object_of(other)})
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)
    assert [kind(actual[name])(0) for name in ("f", "f2")] == [200, 1100]


def test_code_calls_c_functions() -> None:
    address = linked({"f": object_of(C_CALL)})["f"]
    f = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double, ctypes.c_double)(address)
    assert f(3.0, 4.0) == math.hypot(3.0, 4.0)


def test_both_linkers_give_code_that_does_the_same() -> None:
    objects = {"f": object_of(CONSTANTS)}
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)
    ours, llvms = linked(objects)["f"], link_by_llvm(resolve("native"), objects)["f"]
    assert [kind(ours)(i) for i in range(4)] == [kind(llvms)(i) for i in range(4)]


@pytest.mark.parametrize("text", [COUNTER, UNKNOWN], ids=["variable", "unknown function"])
def test_objects_with_variables_or_unknown_functions_are_refused(text: str) -> None:
    with pytest.raises(UnlinkableError):
        linked({"f": object_of(text)})


def test_an_object_without_the_symbol_is_refused() -> None:
    with pytest.raises(UnlinkableError, match="does not define 'other'"):
        linked({"other": object_of(CONSTANTS)})


@given(code=st.binary(max_size=200))
def test_other_files_are_refused(code: bytes) -> None:
    with pytest.raises(UnlinkableError):
        linked({"f": code})


def test_refused_objects_are_linked_by_llvm() -> None:
    (address,) = KernelLibrary(resolve("native"), ObjectCache(None)).load([COUNTER], "f")
    assert ctypes.CFUNCTYPE(ctypes.c_int64)(address)() == 42


def test_a_system_without_executable_memory_uses_llvm(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(code: bytes) -> int:
        raise UnlinkableError("code may not be executed")

    monkeypatch.setattr(linker, "executable_pages", refused)
    (address,) = KernelLibrary(resolve("native"), ObjectCache(None)).load([CONSTANTS], "f")
    assert ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(address)(1) == 300


CACHED = f"""
import ctypes, sys
from quantglow.runtime.jit.library import addresses
from quantglow.codegen.llvm.targets import resolve

(address,) = addresses(resolve("native"), [{CONSTANTS!r}], "f")
f = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(address)
print(f(2), "llvmlite.binding" in sys.modules)
"""


def test_a_process_that_finds_all_kernels_does_without_llvm(tmp_path: Path) -> None:
    environment = {**os.environ, ENVIRONMENT: str(tmp_path)}
    command = [sys.executable, "-c", CACHED]
    answers = [
        subprocess.run(command, env=environment, check=True, text=True, capture_output=True).stdout
        for _ in range(2)
    ]
    assert answers == ["500 True\n", "500 False\n"]


def test_the_pages_of_code_are_not_writable() -> None:
    address = linked({"f": object_of(CONSTANTS)})["f"]
    (line,) = (
        line
        for line in Path("/proc/self/maps").read_text().splitlines()
        if int(line.split("-")[0], 16) <= address < int(line.split("-")[1].split()[0], 16)
    )
    assert line.split()[1] == "r-xp"


def test_headers_are_read_as_the_format_says() -> None:
    sizes = [
        kind.itemsize for kind in (linker.HEADER, linker.SECTION, linker.SYMBOL, linker.RELOCATION)
    ]
    assert sizes == [64, 64, 24, 24]

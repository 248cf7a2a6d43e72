"""Kernels that differ in numbers only become one, which computes what each of them did."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace

import numpy as np
import pytest

import quantglow as qg
from quantglow.codegen.llvm.compiler import link_by_llvm
from quantglow.codegen.llvm.emission import emit_program
from quantglow.codegen.llvm.emitted import EmittedProgram
from quantglow.codegen.llvm.isa.interface import Sharing
from quantglow.codegen.llvm.isa.portable import Portable
from quantglow.codegen.llvm.targets import level_target
from quantglow.codegen.llvm.values import I32
from quantglow.export.bundle.program_object import program_object
from quantglow.export.bundle.shared_kernels import group, literals, with_shared_kernels, word
from quantglow.ir.graph.graph import Graph
from quantglow.memory.planning import plan_program
from quantglow.runtime.native.buffers import aligned_bytes
from tests.support.combinations import covering
from tools.pinned_graphs import quantized
from tools.small_networks import NETWORKS, samples

KERNEL = """define void @kernel(ptr noalias readonly %args, i64 %begin, i64 %end) nounwind {{
entry:
  %room = alloca [{room} x i8], align 64
  %x = load ptr, ptr %args, align 8
  %at = getelementptr i8, ptr %x, i32 {outer}
  br label %loop1.body
loop1.body:
  %i = phi i32 [ 0, %entry ], [ %next, %loop1.body ]
  %p = getelementptr i8, ptr %at, i32 {inner}
  %v = load <4 x float>, ptr %p, align 4
  %w = fmul <4 x float> %v, splat (float {scale})
  store <4 x float> %w, ptr %p, align 4
  %next = add i32 %i, 1
  %more = icmp slt i32 %next, {count}
  br i1 %more, label %loop1.body, label %loop1.done
loop1.done:
  ret void
}}
"""
FACTS = {"room": 64, "outer": 4, "inner": 16, "scale": "0x3FB99999A0000000", "count": 7}


def kernel(**facts: object) -> str:
    return KERNEL.format(**(FACTS | facts))


@dataclass(frozen=True)
class Small(Portable):
    """Plain LLVM IR for a processor on which code counts."""

    sharing_of: Sharing = Sharing.ALL

    @property
    def sharing(self) -> Sharing:
        return self.sharing_of


def emitted(graph: Graph, sharing: Sharing) -> EmittedProgram:
    portable = level_target("portable")
    isa = portable.isa
    small = Small(isa.registers, isa.vector_nbytes, False, index=I32, sharing_of=sharing)
    target = replace(portable, isa=small)
    planned = plan_program(graph, target)
    return emit_program(planned.program, planned.plan, target)


def test_numbers_outside_of_inner_addresses_are_shared() -> None:
    texts = [kernel(), kernel(outer=12, count=3, scale="0x3FC0000000000000", room=128)]
    ((built, ours),) = group(texts, Sharing.OUTER)
    assert ours == texts
    half = int(np.float32(0.125).view(np.int32))
    assert built.passed() == [[4, int(np.float32(0.1).view(np.int32)), 7], [12, half, 3]]
    assert "alloca [128 x i8]" in built.shared(1)


def test_addresses_of_inner_loops_are_shared_where_code_counts_most() -> None:
    texts = [kernel(), kernel(inner=32)]
    assert len(group(texts, Sharing.OUTER)) == 2
    assert len(group(texts, Sharing.ALL)) == 1


def test_equal_numbers_are_one_operand() -> None:
    ((built, _),) = group([kernel(outer=7), kernel(outer=9, count=9)], Sharing.OUTER)
    assert built.passed() == [[7], [9]]


def test_many_different_numbers_keep_kernels_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quantglow.export.bundle.shared_kernels.MOST_OPERANDS", 1)
    texts = [kernel(), kernel(outer=12), kernel(outer=12, count=3)]
    assert [item for _, item in group(texts, Sharing.OUTER)] == [texts[:2], texts[2:]]


def test_other_numbers_stay() -> None:
    """Alignments, lanes and numbers of shuffles are no operands."""
    assert [n.text for n in literals(kernel(), Sharing.ALL)] == [
        *("64", "4", "16", "0x3FB99999A0000000", "1", "7")
    ]


@pytest.mark.parametrize("text", ["0x3FB99999A0000000", "1.500000e+00", "0x41DFFFFFC0000000"])
def test_floats_are_passed_by_their_bits(text: str) -> None:
    value = float(text) if "x" not in text else np.uint64(int(text, 16)).view(np.float64)
    assert word("float", text) == int(np.float32(value).view(np.uint32))


@pytest.mark.slow_variants
@pytest.mark.parametrize(
    ("name", "sharing"),
    covering(["depthwise", "residual", "squeeze_excite"], [Sharing.OUTER, Sharing.ALL]),
)
def test_shared_kernels_compute_the_interpreters_integers(name: str, sharing: Sharing) -> None:
    graph = quantized(name)
    program = emitted(graph, sharing)
    assert len(with_shared_kernels(program).texts) < len(program.texts)
    feeds = samples(NETWORKS[name](), 1, seed=3)[0]
    expected = qg.interpret(graph, feeds)
    object_file = program_object("net", program)
    outputs = [np.empty(value.shape, value.dtype) for value in expected]
    arena = aligned_bytes(object_file.arena_nbytes)
    ends = [
        (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
        for arrays in (list(feeds.values()), outputs)
    ]
    addresses = link_by_llvm(level_target("portable"), {"net_run": object_file.code})
    run = ctypes.CFUNCTYPE(ctypes.c_int)(addresses["net_run"])
    assert run(ctypes.c_void_p(arena.ctypes.data), *ends) == 0
    for value, reference in zip(outputs, expected, strict=True):
        np.testing.assert_array_equal(value, reference)

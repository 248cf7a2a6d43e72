"""Run one graph on every backend and compare with the interpreter."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from quantglow.codegen.llvm.isa.target import Target
from quantglow.codegen.llvm.targets import LEVELS, level_target, resolve, runs_here
from quantglow.interpreter import interpret
from quantglow.interpreter.program import ReferenceExecutable
from quantglow.ir.graph.graph import Graph
from quantglow.ir.program.verify import verify_program
from quantglow.memory.planner import plan_memory
from quantglow.memory.schedule import schedule
from quantglow.runtime.native.compilation import compile_program
from quantglow.runtime.native.executable import LlvmExecutable
from quantglow.support.arrays import Array
from quantglow.transforms.lowering import lower
from quantglow.transforms.program.generate import generate
from quantglow.transforms.program.sharing import share_in_place
from tests.support.effort import PROFILE
from tests.support.equality import assert_equal_values
from tests.support.feeds import feeds_of
from tests.support.guarded import guarded

TARGETS = tuple(name for name in LEVELS if runs_here(name))
BASELINE = TARGETS[-2:][0]
"""The level of every processor of this family; behind it is portable code."""
EVERYWHERE = ("native", *TARGETS)
SLACK_NBYTES = max(level_target(name).isa.slack_nbytes for name in LEVELS)
"""Bytes after buffers that kernels of any target may read."""
ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


def planned(graph: Graph, unsigned: bool = True):
    """The shared, verified and planned program of a graph; ``unsigned`` activations or signed."""
    lowered = lower(graph, unsigned=unsigned)
    program = generate(lowered, schedule(lowered), slack_nbytes=SLACK_NBYTES)
    program = share_in_place(program)
    verify_program(program)
    return program, plan_memory(program)


def on_llvm(
    graph: Graph, feeds: dict[str, Array], target: str | Target, threads: int = 1
) -> list[Array]:
    resolved = resolve(target) if isinstance(target, str) else target
    program = planned(graph, resolved.isa.unsigned_activations)
    return compile_program(*program, resolved, threads).run(feeds)


def on_reference(graph: Graph, feeds: dict[str, Array]) -> list[Array]:
    return ReferenceExecutable(*planned(graph)).run(feeds)


def assert_agree(
    graph: Graph,
    feeds: dict[str, Array],
    target: str | Target,
    threads: int = 1,
    rtol: float = 2e-5,
) -> None:
    """Integers equal bit for bit, floats within ``rtol`` of the largest expected value."""
    expected = interpret(graph, feeds)
    assert_equal_values(on_llvm(graph, feeds, target, threads), expected, rtol, atol=rtol)


def guarded_feeds(graph: Graph, seed: int, spread: float = 3.0) -> dict[str, Array]:
    """Random values for every input, before or behind a guard page."""
    at_end = np.random.default_rng(seed).random(len(graph.inputs)) < 0.5
    drawn = feeds_of(graph, seed, spread).items()
    return {name: guarded(a, at_end=bool(e)) for (name, a), e in zip(drawn, at_end, strict=True)}


def in_turn(seed: int) -> Sequence[str]:
    """``native`` and two levels for a drawn example; other seeds have others.
    ``nightly`` runs each on every level.
    """
    if PROFILE == "nightly":
        return EVERYWHERE
    others = (seed, seed + len(TARGETS) // 2)
    return ("native", *dict.fromkeys(TARGETS[i % len(TARGETS)] for i in others))


def assert_targets_agree(
    graph: Graph,
    feeds: dict[str, Array],
    *,
    targets: Sequence[str] = EVERYWHERE,
    unsigned: bool = False,
    rtol: float = 1e-5,
) -> None:
    """Check machine code of targets, whole or item by item, against the reference.

    Integers are equal bit for bit, floats within ``rtol`` of the largest.
    """
    program, plan = planned(graph, unsigned)
    expected = ReferenceExecutable(program, plan).run(feeds)
    for target in targets:
        executable = compile_program(program, plan, resolve(target))
        runs = {"whole": executable.run(feeds), "split": run_backwards(executable, feeds)}
        for how, value in runs.items():
            for want, got in zip(expected, value, strict=True):
                assert_equal_or_close(got, want, rtol, f"{target}, {how}")


def run_backwards(executable: LlvmExecutable, feeds: dict[str, Array]) -> list[Array]:
    """Every work item of a kernel in a call of its own, the last one first."""
    outputs = [guarded(array, at_end=True) for array in executable.new_outputs()]
    with executable.bound(feeds, outputs) as table:
        for row, call in zip(table, executable.program.calls, strict=True):
            kernel = ENTRY(int(row[0]))
            for item in reversed(range(call.items)):
                kernel(int(row[1]), item, item + 1)
    return outputs


def assert_equal_or_close(got: Array, want: Array, rtol: float, where: str) -> None:
    if want.dtype != np.float32:
        np.testing.assert_array_equal(got, want, err_msg=where)
        return
    finite = np.abs(want[np.isfinite(want)])
    scale = max(1.0, float(finite.max(initial=0.0)))
    np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol * scale, err_msg=where)

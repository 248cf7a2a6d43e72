"""Memory in large pages: the allocator's contract, and the places of pieces."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantglow.codegen.llvm.isa.costs import Core
from quantglow.codegen.llvm.isa.x86.levels import ICE_LAKE
from quantglow.codegen.llvm.targets import level_target
from quantglow.runtime.native.buffers import (
    ALIGNMENT,
    CHUNK_NBYTES,
    FIRST_NBYTES,
    HAS_LARGE_PAGES,
    PAGE_NBYTES,
    Allocate,
    LargePages,
    aligned_bytes,
    map_bytes,
)
from quantglow.runtime.native.loaded import allocator
from quantglow.support.arrays import Array
from quantglow.support.errors import OutOfMemoryError

pytestmark = pytest.mark.skipif(not HAS_LARGE_PAGES, reason="the system has no large pages")

sizes = st.integers(1, FIRST_NBYTES) | st.integers(FIRST_NBYTES, 3 * PAGE_NBYTES)


def address(array: Array) -> int:
    return int(array.ctypes.data)


@given(st.lists(sizes, min_size=1, max_size=12))
def test_pieces_are_aligned_and_do_not_overlap(asked: list[int]) -> None:
    allocate = LargePages()
    pieces = [allocate(nbytes) for nbytes in asked]
    assert [piece.nbytes for piece in pieces] == asked
    assert all(address(piece) % ALIGNMENT == 0 for piece in pieces)
    ordered = sorted(pieces, key=address)
    ends = [address(piece) + piece.nbytes for piece in ordered]
    assert all(end <= address(after) for end, after in zip(ends, ordered[1:], strict=False))


def test_pieces_can_be_written() -> None:
    allocate = LargePages()
    pieces = [allocate(FIRST_NBYTES) for _ in range(12)]
    for index, piece in enumerate(pieces):
        piece[:] = index
    assert [int(piece.max()) for piece in pieces] == list(range(12))


def test_small_programs_take_small_pages() -> None:
    allocate = LargePages()
    allocate(FIRST_NBYTES)
    assert allocate.unused.size == 0
    allocate(1)
    assert 0 < CHUNK_NBYTES - allocate.unused.size <= ALIGNMENT


def test_mapped_memory_begins_with_a_page() -> None:
    assert address(map_bytes(5)) % PAGE_NBYTES == 0


def test_mapped_memory_lives_as_long_as_its_pieces() -> None:
    memory = map_bytes(PAGE_NBYTES)
    mapping = weakref.ref(_owner(memory))
    piece = memory[10:20]
    del memory
    gc.collect()
    assert mapping() is not None
    piece[:] = 1
    del piece
    gc.collect()
    assert mapping() is None


@pytest.mark.parametrize("allocate", [LargePages(), aligned_bytes])
@pytest.mark.parametrize("nbytes", [2**46, 2**62, 2**66])
def test_memory_that_the_system_does_not_have_is_a_typed_error(
    allocate: Allocate, nbytes: int
) -> None:
    with pytest.raises(OutOfMemoryError, match=r"no memory for .* MB") as raised:
        allocate(nbytes)
    assert isinstance(raised.value, MemoryError)


def _owner(array: Array) -> Array:
    """The array that holds the mapping."""
    actual = array
    while isinstance(actual.base, np.ndarray):
        actual = actual.base
    return actual


@pytest.mark.parametrize(("core", "large"), [(Core(), False), (ICE_LAKE, True)])
def test_only_cores_that_gain_by_it_use_large_pages(core: Core, large: bool) -> None:
    target = replace(level_target("avx512vnni"), core=core)
    assert isinstance(allocator(target), LargePages) == large

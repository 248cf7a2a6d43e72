"""Arrays of a file come back bit for bit, in fewer bytes where they allow it."""

from __future__ import annotations

import io
import json
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from quantglow.importer.onnx.operators.math.fourier import Transform
from quantglow.runtime.saved import stored_arrays
from quantglow.runtime.saved.members import (
    FREE_NBYTES,
    MAX_EXPANSION,
    Allowance,
    check_members,
    is_bounded,
    write_members,
)
from quantglow.runtime.saved.stored_arrays import (
    BASES,
    ArrayForms,
    ArrayStore,
    from_npy,
    member_name,
)
from quantglow.support import pages
from quantglow.support.arrays import Array

DTYPES = [np.float32, np.int8, np.int32, np.int64, np.bool_, np.float64, np.uint8]
SHAPES = arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)
ARRAYS = st.sampled_from(DTYPES).flatmap(lambda dtype: arrays.arrays(dtype, SHAPES))


def stored(inputs: list[Array]) -> tuple[ArrayStore, list[int]]:
    store = ArrayStore()
    return store, [store.number_of(array) for array in inputs]


def read_back(store: ArrayStore) -> dict[int, Array]:
    """The arrays that a reader makes of the members and of the manifest's text."""
    members = store.members()
    forms = ArrayForms.of(json.loads(json.dumps(store.manifest())))
    assert forms.members(store.numbers.values()) == set(members)
    contents = {name: b"".join(pages.iterate_pieces(member)) for name, member in members.items()}
    assert list(map(len, contents.values())) == list(map(len, members.values()))
    written = forms.unpacked(contents.pop("constants/packed.bin", b""))
    large = forms.stored(store.numbers.values()) - written.keys()
    written |= {n: from_npy(contents[member_name(n)]) for n in large}
    return forms.arrays({n: forms.widen(n, array) for n, array in written.items()})


@given(st.lists(ARRAYS, max_size=8))
def test_arrays_come_back_bit_for_bit(drawn: list[Array]) -> None:
    store, numbers = stored(drawn)
    restored = read_back(store)
    kinds = [(a.dtype, a.shape, a.tobytes()) for a in drawn]
    assert [(restored[n].dtype, restored[n].shape, restored[n].tobytes()) for n in numbers] == kinds


@given(st.lists(ARRAYS, max_size=4), st.integers(4, 40))
def test_members_of_arrays_are_read_in_pieces_of_any_size(drawn: list[Array], nbytes: int) -> None:
    changed = [array + array.dtype.type(1) for array in drawn]
    halves = [np.full(11, 0.5, np.float32), np.arange(3, dtype=np.float32)]
    every = [*drawn, *changed, *halves]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored_arrays, "SMALL_NBYTES", 0)
        patch.setattr(pages, "PIECE_NBYTES", nbytes)
        store, numbers = stored(every)
        restored = read_back(store)
    kinds = [(a.dtype, a.shape, a.tobytes()) for a in every]
    assert [(restored[n].dtype, restored[n].shape, restored[n].tobytes()) for n in numbers] == kinds


def test_a_difference_is_read_in_pieces_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "PIECE_NBYTES", 7)
    base = np.random.default_rng(0).standard_normal(1 << 15).astype(np.float32)
    store, numbers = stored([base, np.where(np.arange(base.size) % 5, base, base + 1)])
    restored = read_back(store)
    assert list(store.deltas) == [1]
    assert (restored[numbers[1]][::5] == base[::5] + 1).all()


def of_npy(array: Array, version: tuple[int, int]) -> bytes:
    """A ``.npy`` file of a version."""
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, version)
    return buffer.getvalue()


@given(ARRAYS, st.sampled_from([(1, 0), (2, 0)]), st.sampled_from("CF"))
def test_files_that_numpy_wrote_are_read(
    array: Array, version: tuple[int, int], order: Any
) -> None:
    actual = from_npy(of_npy(np.asarray(array, order=order), version))
    assert (actual.dtype, actual.shape) == (array.dtype, array.shape)
    assert actual.tobytes() == array.tobytes()


@pytest.mark.parametrize("size", [1, 1 << 60, -3])
def test_a_file_shorter_than_its_header_says_is_refused(size: int) -> None:
    whole = of_npy(np.zeros(7, np.float32), (1, 0))
    damaged = whole.replace(b"(7,)", f"({size},)".encode())[: -4 * 7]
    with pytest.raises(ValueError, match=r"buffer|an array is float32"):
        from_npy(damaged)


def test_a_large_array_has_a_member_of_its_own() -> None:
    large = np.random.default_rng(0).integers(-127, 128, 1 << 17, np.int8)
    assert set(stored([large])[0].members()) == {member_name(0)}


def test_float32_that_float16_holds_takes_half_the_bytes() -> None:
    values = np.random.default_rng(0).standard_normal(1 << 16).astype(np.float16)
    store, _ = stored([values.astype(np.float32)])
    assert sum(map(len, store.members().values())) < 1.01 * values.nbytes


@pytest.mark.parametrize("between", [0, BASES - 1])
def test_weights_rounded_apart_are_stored_as_differences(between: int) -> None:
    rng = np.random.default_rng(0)
    first = rng.integers(-127, 127, (64, 96), np.int8)
    second = (first + (rng.random(first.shape) < 0.1)).astype(np.int8)
    others = [rng.integers(-127, 127, first.shape, np.int8) for _ in range(between)]
    store, _ = stored([first, *others, second])
    assert store.manifest()["deltas"] == [(between + 1, 0)]


def test_unlike_weights_are_stored_as_they_are() -> None:
    first, second = np.random.default_rng(0).integers(-127, 127, (2, 64, 96), np.int8)
    assert stored([first, second])[0].manifest()["deltas"] == []


def fourier_matrix() -> Array:
    window = np.hanning(257)[:-1].astype(np.float32)
    return Transform(256, 129, window, (1, 2)).dense().astype(np.float32).reshape(1, 256, 1, 258)


def test_the_matrix_of_a_transform_takes_the_bytes_of_its_turns_and_window() -> None:
    store, (number,) = stored([matrix := fourier_matrix()])
    assert sum(map(len, store.members().values())) == 256 * 16 + 256 * 4
    assert read_back(store)[number].tobytes() == matrix.tobytes()


def test_matrices_that_are_made_anew_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_arrays, "FREE_NBYTES", fourier_matrix().nbytes)
    store, _ = stored([fourier_matrix(), fourier_matrix().reshape(256, 258)])
    assert (len(store.fourier), len(store.written)) == (1, 3)


def test_members_are_compressed_where_that_pays(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).bytes(1 << 16)
    write_members(tmp_path / "a.zip", {"zeros": bytes(1 << 16), "noise": noise})
    assert len(noise) < (tmp_path / "a.zip").stat().st_size < 1.02 * len(noise)


def test_a_written_file_can_be_read_however_far_it_would_expand(tmp_path: Path) -> None:
    write_members(tmp_path / "a.zip", {"zeros": bytes(FREE_NBYTES + (8 << 20))})
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        check_members(archive, Allowance.of(archive))


def test_a_file_may_expand_so_many_times() -> None:
    assert is_bounded(FREE_NBYTES + MAX_EXPANSION * 1000, 1000)
    assert not is_bounded(FREE_NBYTES + MAX_EXPANSION * 1000 + 1, 1000)


@pytest.mark.slow_variants
@pytest.mark.parametrize("kind", [np.float32, np.float16], ids=["as they are", "as float16"])
def test_arrays_in_pages_are_written_without_a_copy_of_them(tmp_path: Path, kind: Any) -> None:
    noise = np.random.default_rng(1).standard_normal((3 << 20) // 4).astype(kind)
    noise = noise.astype(np.float32)
    html = pages.page(np.roll(noise, n) for n in range(16))
    assert html is not None
    tracemalloc.start()
    store, _ = stored(html)
    write_members(tmp_path / "a.zip", store.members())
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 24 << 20 < sum(array.nbytes for array in html)

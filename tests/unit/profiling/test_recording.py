"""Profiling takes data as people have it, and refuses what it cannot use by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input
from quantglow.ir.ops import Add, Log
from quantglow.ir.types import f32
from quantglow.profiling import Profile, profile
from quantglow.support.arrays import Array
from quantglow.support.errors import CalibrationError, OptionError

DATA = np.linspace(0.5, 3, 24, dtype=np.float32).reshape(4, 2, 3)


def network() -> Graph:
    x, y = Input(name="x", tensor=f32(2, 3)), Input(name="y", tensor=f32(2, 3))
    total = Add(
        name="total", x=x, y=Add(name="y1", x=y, y=Constant(name="k", value=np.float32([1])))
    )
    return Graph(inputs=(x, y), outputs=(("out", Log(name="log", x=total)),), source_hash="n")


def one_input() -> Graph:
    x = Input(name="x", tensor=f32(2, 3))
    return Graph(inputs=(x,), outputs=(("out", Log(name="log", x=x)),), source_hash="o")


class Reader:
    """Samples with the interface of onnxruntime's CalibrationDataReader."""

    def __init__(self, samples: list[dict[str, Array]]) -> None:
        self.samples = iter(samples)

    def get_next(self) -> dict[str, Array] | None:
        return next(self.samples, None)


def expected() -> Profile:
    return profile(network(), [{"x": d, "y": d + 1} for d in DATA], progress=False)


FORMS: dict[str, Any] = {
    "tuples": [(d, d + 1) for d in DATA],
    "lists": [[d, d + 1] for d in DATA],
    "generator": ({"x": d, "y": d + 1} for d in DATA),
    "reader": Reader([{"x": d, "y": d + 1} for d in DATA]),
    "big batches": [
        {"x": DATA[:2].reshape(4, 3), "y": DATA[:2].reshape(4, 3) + 1},
        (DATA[2:].reshape(4, 3), DATA[2:].reshape(4, 3) + 1),
    ],
    "one dict": {"x": DATA.reshape(8, 3), "y": DATA.reshape(8, 3) + 1},
    "float64": [(d.astype(np.float64), (d + 1).astype(np.float64)) for d in DATA],
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_the_data_gives_the_same_profile(form: str) -> None:
    assert profile(network(), FORMS[form], progress=False) == expected()


def test_an_npz_file_is_cut_along_its_first_axis(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=DATA.reshape(8, 3), y=DATA.reshape(8, 3) + 1)
    assert profile(network(), tmp_path / "data.npz", progress=False) == expected()


def test_bare_arrays_serve_a_model_with_one_input() -> None:
    from_list = profile(one_input(), list(DATA), progress=False)
    assert from_list == profile(one_input(), DATA.reshape(8, 3), progress=False)


def test_constants_are_not_recorded() -> None:
    assert set(expected().histograms) == {"x", "y", "y1", "total", "log"}


def test_subset_size_counts_batches_of_the_model_and_reads_no_further() -> None:
    samples = iter([(d, d) for d in DATA])
    assert profile(network(), samples, subset_size=2, progress=False).samples == 2
    assert len(list(samples)) == 2


def test_extremes_are_exact() -> None:
    observed = expected().histograms["x"]
    assert (observed.minimum, observed.maximum, observed.count) == (0.5, 3.0, 24)


ONES = np.ones((2, 3), np.float32)
BAD = DATA[0].copy()
BAD[1, 2] = np.nan

REFUSED: dict[str, tuple[Any, str]] = {
    "missing": (None, "missing"),
    "empty": ([], "no samples"),
    "not iterable": (3, "cannot be iterated"),
    "wrong name": ([{"x": DATA[0], "z": DATA[0]}], "sample 0 has inputs \\['x', 'z'\\]"),
    "one short": ([(DATA[0],)], "has 1 array"),
    "numbers": ([[0.5, 1.5, 2.5]], "sample 0 is a list of 3 number.*numpy.asarray"),
    "targets": ([(DATA[0], DATA[0], 0.5)], "leave out labels"),
    "shape": ([(DATA[0], DATA[0][:, :2])], "input 'y': expected shape \\(2, 3\\)"),
    "batch": ([(DATA[0], np.ones((3, 3), np.float32))], "input 'y'.*got \\(3, 3\\)"),
    "no rows": ([(DATA[0], np.ones((0, 3), np.float32))], "holds no data: input 'y'"),
    "rank": ([(DATA[0], DATA[0][0])], "input 'y'"),
    "dtype": ([(DATA[0], np.ones((2, 3), np.int64))], "input 'y'.*float32, got int64"),
    "text": ([(DATA[0], "abc")], "input 'y'"),
    "nan": ([(DATA[0], DATA[0]), (DATA[0], BAD)], "1 has 1 NaN or Inf .* 'y', the first at .1, 2."),
    "overflow": ([(DATA[0], np.full((2, 3), 1e300))], "6 value\\(s\\) too large for float32"),
    "unequal": ([(np.ones((4, 3), np.float32), DATA[0])], "different numbers of batches"),
    "nan inside": ([(DATA[0] - 9, DATA[0])], "6 NaN and 0 Inf .* 'log' \\(Log\\)"),
    "inf inside": ([(ONES, -2 * ONES)], "0 NaN and 6 Inf .* 'log' \\(Log\\)"),
    "no file": ("/nonexistent/data.npz", "cannot read"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_unusable_data_is_refused_by_name(case: str) -> None:
    data, text = REFUSED[case]
    with pytest.raises(CalibrationError, match=text):
        profile(network(), data, progress=False)


def test_files_that_are_no_archives_are_refused(tmp_path: Path) -> None:
    (tmp_path / "data.npz").write_bytes(b"PK\x03\x04 not really")
    with pytest.raises(CalibrationError, match="cannot read"):
        profile(network(), tmp_path / "data.npz")


def test_pickled_arrays_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=np.array([{}], object), y=DATA)
    with pytest.raises(CalibrationError, match="cannot read"):
        profile(network(), tmp_path / "data.npz")


def test_subset_size_must_be_positive() -> None:
    with pytest.raises(OptionError):
        profile(network(), [], subset_size=0)


def test_progress_is_silent_when_piped(capfd: pytest.CaptureFixture[str]) -> None:
    profile(network(), FORMS["tuples"], progress="auto")
    assert capfd.readouterr() == ("", "")


def test_progress_shows_on_request(capfd: pytest.CaptureFixture[str]) -> None:
    profile(network(), FORMS["tuples"], progress=True)
    assert "Profiling" in capfd.readouterr().err


def rows(bad: int, count: int = 4) -> Array:
    """``count`` samples of ``one_input`` in one array; -1 in a row of sample ``bad``."""
    values = np.ones((2 * count, 3), np.float32)
    values[2 * bad + 1, 2] = -1
    return values


def not_finite(values: Any) -> Any:
    """The data with NaN for -1, in the same form."""
    if isinstance(values, dict):
        return {name: not_finite(value) for name, value in values.items()}
    if isinstance(values, list | tuple):
        return type(values)(map(not_finite, values))
    return np.where(values < 0, np.float32(np.nan), values)


SINGLE = Graph(
    inputs=(x := Input(name="x", tensor=f32(1, 3)),),
    outputs=(("out", Log(name="log", x=x)),),
    source_hash="s",
)
PLACES: dict[str, tuple[Graph, Any, str]] = {
    "sample of a list": (one_input(), [ONES, ONES, ONES, rows(0, 1)], "sample 3 "),
    "tuples": (one_input(), [(ONES,), (rows(0, 1),)], "sample 1 "),
    "row of a sample": (SINGLE, [np.ones((4, 3), np.float32), rows(1, 2)], "sample 1, row 3 "),
    "rows of a sample": (one_input(), [ONES, rows(1, 2)], "sample 1, rows 2 to 3 "),
    "one array": (SINGLE, rows(1, 2), "sample 3 "),
    "one dict": (SINGLE, {"x": rows(1, 2)}, "sample 3 "),
    "one array of batches": (one_input(), rows(3), "samples 6 to 7 "),
}


@pytest.mark.parametrize("spoil", [lambda data: data, not_finite, iter], ids=["log", "input", "it"])
@pytest.mark.parametrize("case", PLACES)
def test_the_sample_with_nan_is_named(case: str, spoil: Callable[[Any], Any]) -> None:
    graph, data, place = PLACES[case]
    inputs = data if spoil is iter and not isinstance(data, list) else spoil(data)
    with pytest.raises(CalibrationError, match=f"^{place}(has|leads to) 1 NaN"):
        profile(graph, inputs, progress=False)


def test_an_npz_file_names_its_sample(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=not_finite(rows(1, 2)))
    with pytest.raises(CalibrationError, match=r"^sample 3 has 1 NaN"):
        profile(SINGLE, tmp_path / "data.npz", progress=False)


class Dataset:
    """Samples by number, as map-style datasets of PyTorch have them."""

    def __len__(self) -> int:
        return len(DATA)

    def __getitem__(self, index: int) -> Any:
        return DATA[index], DATA[index]


def test_a_dataset_is_read_by_number() -> None:
    profiled = profile(network(), Dataset(), progress=False)
    expected = profile(network(), [(sample, sample) for sample in DATA], progress=False)
    assert profiled.histograms.keys() == expected.histograms.keys()
    for name, one in expected.histograms.items():
        assert (profiled.histograms[name].minimum, profiled.histograms[name].count) == (
            one.minimum,
            one.count,
        )

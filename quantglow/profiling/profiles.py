"""Profile of a model: the histogram of every tensor, and its file.

A profile is independent of the quantization chosen later.  Its file is a zip of ``manifest.json``
and ``counts.npy`` (so ``numpy.load`` opens it).  The manifest holds a SHA-256 over everything else;
reading trusts nothing and unpickles nothing.  Version 2 has bodies of loops, too.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import zipfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from typing import Any

import numpy as np

from quantglow.ir.graph.family import Case
from quantglow.ir.graph.graph import Graph
from quantglow.profiling.histogram import BINS, FINEST, Histogram
from quantglow.support.arguments import brief, file_path, instance, is_series
from quantglow.support.arrays import Array
from quantglow.support.classes import Concise
from quantglow.support.errors import FileFormatError, OptionError, ProfileMismatchError
from quantglow.support.files import DAMAGED_CONTENT, cause, writing
from quantglow.support.processes.threads import run_undisturbed
from quantglow.support.views import HasDrawing

FORMAT = "quantglow-profile"
VERSION, BODIES_VERSION = 1, 2
MAX_NBYTES, MAX_TEXT_NBYTES = 1 << 30, 64 << 20
"""Maximum size of the text and of the counts, in bytes; larger members are refused unread.  A
model of 50,000 tensors stays below.  As Python objects the text takes 20 times as much."""

Run = tuple[Case, int]
"""Input shapes and deciding values -> number of runs with them."""


@dataclass(frozen=True, repr=False)
class Profile(Concise, HasDrawing):
    """One histogram for each float value, keyed by ONNX value name.

    ``source_hash`` binds it to the model, at any shape.  ``samples`` counts the runs of the model,
    ``cases`` the runs with each combination of input shapes and deciding values.  ``bodies`` are
    profiles of trips of loops that compute the number of their trips, by the names of the loops.
    """

    source_hash: str
    histograms: Mapping[str, Histogram]
    samples: int = 0
    cases: Mapping[Case, int] = field(default_factory=dict)
    bodies: Mapping[str, Profile] = field(default_factory=dict)

    @property
    def main_cases(self) -> list[Case]:
        """Shapes that most elements of the data have, for each combination of deciding values.

        The combination with most elements comes first.  Graphs of late sizes of 0 and 1 have fewer
        operators: such cases are main ones only where there are no others.
        """

        def elements(case: Case) -> int:
            shapes = (*case.shapes, *case.late)
            return self.cases[case] * sum(math.prod(shape) for _, shape in shapes)

        def rank(case: Case) -> tuple[int, int, int, Case]:
            late = Counter(size for _, shape in case.late for size in shape)
            return -late[0], -late[1], elements(case), case

        order = sorted(self.cases, key=rank, reverse=True)
        first: dict[object, Case] = {}
        for case in order:
            first.setdefault(case.values, case)
        return list(first.values())

    def merge(self, other: Profile) -> Profile:
        """The profile of both data sets; exact, associative and commutative."""
        instance("other", other, Profile, "a Profile")
        if other.source_hash != self.source_hash:
            raise self._mismatch(other.source_hash, "the other profile was recorded on")
        names = sorted(self.histograms.keys() | other.histograms.keys())
        nothing = Histogram()
        merged = {
            name: self.histograms.get(name, nothing).merge(other.histograms.get(name, nothing))
            for name in names
        }
        cases = Counter(self.cases) + Counter(other.cases)
        bodies = merge_bodies(self.bodies, other.bodies)
        return Profile(self.source_hash, merged, self.samples + other.samples, cases, bodies)

    def check(self, graph: Graph) -> None:
        """Raise ``ProfileMismatchError`` if it was recorded on another model than that of
        ``graph``.
        """
        if graph.source_hash != self.source_hash:
            raise self._mismatch(graph.source_hash, "this model is")
        missing = [i.name for i in graph.inputs if i.type.dtype.is_float and i.name not in self]
        if missing:
            raise ProfileMismatchError(
                f"the profile has no range for the input(s) {missing}: no sample had elements of "
                "them. Remedy: add a sample that has, such as a call with a cache."
            )

    def __contains__(self, name: str) -> bool:
        return name in self.histograms and self.histograms[name].count > 0

    def _mismatch(self, source_hash: str, what: str) -> ProfileMismatchError:
        return ProfileMismatchError(
            f"the profile was recorded on model {self.source_hash[:16] or '(no hash)'}, but "
            f"{what} {source_hash[:16] or '(no hash)'}: another model, another export, or changed "
            "weights. Remedy: profile this model again."
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write an ``.npz`` file; an existing file is replaced at once or not at all."""
        _write_profile(file_path("path", path), self)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Profile:
        """Read a file of ``save``.  Raises ``FileFormatError``."""
        return _read_profile(file_path("path", path))

    @staticmethod
    def merged(profiles: Iterable[Profile]) -> Profile:
        """All profiles merged.  Raises ``OptionError`` if there are none."""
        parts: list[Profile] = list(profiles) if is_series(profiles) else []
        if not parts:
            raise OptionError(f"profiles must be one Profile or more, got {brief(profiles)}")
        for profile in parts:
            instance("profiles", profile, Profile, "Profiles")
        return reduce(Profile.merge, parts)


def merge_bodies(one: Mapping[str, Profile], other: Mapping[str, Profile]) -> dict[str, Profile]:
    """The profiles of the bodies of both, by the names of their loops."""
    merged = dict(sorted({**one, **other}.items()))
    return merged | {name: one[name].merge(other[name]) for name in one.keys() & other.keys()}


def _write_profile(path: str | os.PathLike[str], profile: Profile) -> None:
    """Write to a temporary file beside ``path``, then rename.  Raises ``FileFormatError``.

    Equal profiles give equal files, in whatever order their values were recorded.
    """
    parts = [np.zeros(0, np.int64)]
    facts = _profile_facts(profile, parts)
    counts = np.concatenate(parts).astype("<i8")
    version = BODIES_VERSION if profile.bodies else VERSION
    manifest: dict[str, Any] = {"format": FORMAT, "version": version, **facts}
    manifest["sha256"] = _digest(manifest, counts)
    with writing(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        archive.writestr(_entry("manifest.json"), json.dumps(manifest, indent=1))
        buffer = io.BytesIO()
        np.lib.format.write_array(buffer, counts, allow_pickle=False)
        archive.writestr(_entry("counts.npy"), buffer.getvalue())


def _profile_facts(profile: Profile, parts: list[Array]) -> dict[str, Any]:
    """The entries of a profile in the manifest; its counts are appended to ``parts``."""
    histograms = dict(sorted(profile.histograms.items()))
    parts += [histogram.counts for histogram in histograms.values()]
    facts: dict[str, Any] = {
        "source_hash": profile.source_hash,
        "samples": profile.samples,
        "runs": [_run_facts(*run) for run in sorted(profile.cases.items())],
        "tensors": {name: _describe(h) for name, h in histograms.items()},
    }
    if profile.bodies:
        bodies = sorted(profile.bodies.items())
        facts["bodies"] = {name: _profile_facts(body, parts) for name, body in bodies}
    return facts


def _entry(name: str) -> zipfile.ZipInfo:
    """A member that does not depend on the time of day."""
    entry = zipfile.ZipInfo(name)
    entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o600 << 16
    return entry


def _read_profile(path: str | os.PathLike[str]) -> Profile:
    """The profile in a file.  Raises ``FileFormatError``."""
    try:
        with zipfile.ZipFile(path) as archive:
            manifest = json.loads(_member(archive, "manifest.json", MAX_TEXT_NBYTES))
            raw = _member(archive, "counts.npy", MAX_NBYTES)
        counts = run_undisturbed(
            lambda: np.lib.format.read_array(io.BytesIO(raw), allow_pickle=False)
        )
        _check(manifest, counts)
        profile, more_counts = _profile_from(manifest, counts)
        if len(more_counts):
            raise ValueError("the counts do not fit the tensors")
        return profile
    except OSError as error:
        raise FileFormatError(
            f"cannot read profile {os.fspath(path)!r}: {cause(error)}. Remedy: give the path of an "
            ".npz file that Profile.save wrote."
        ) from error
    except DAMAGED_CONTENT as error:
        raise FileFormatError(
            f"{os.fspath(path)!r} is not a profile of version {VERSION} or {BODIES_VERSION}, or it "
            f"is truncated or altered ({error}). Remedy: profile the model again."
        ) from error


def _profile_from(facts: Mapping[str, Any], counts: Array) -> tuple[Profile, Array]:
    """A profile, and the counts behind its own.  Raises one of ``DAMAGED_CONTENT``."""
    histograms, counts = _histograms(facts["tensors"], counts)
    runs = [_run(entry) for entry in facts.get("runs", [])]
    bodies: dict[str, Profile] = {}
    for name, body in facts.get("bodies", {}).items():
        bodies[str(name)], counts = _profile_from(body, counts)
    source_hash, samples = str(facts["source_hash"]), int(facts["samples"])
    return Profile(source_hash, histograms, samples, dict(runs), bodies), counts


def is_profile(path: str | os.PathLike[str]) -> bool:
    """Whether a file has the members of a profile, sound or damaged."""
    try:
        with zipfile.ZipFile(path) as archive:
            return {"manifest.json", "counts.npy"} <= set(archive.namelist())
    except (OSError, *DAMAGED_CONTENT):
        return False


def _member(archive: zipfile.ZipFile, name: str, most: int) -> bytes:
    if archive.getinfo(name).file_size > most:
        raise ValueError(f"{name} is larger than {most} bytes")
    return archive.read(name)


def _check(manifest: Any, counts: Array) -> None:
    versions = (VERSION, BODIES_VERSION)
    if manifest["format"] != FORMAT or manifest["version"] not in versions:
        raise ValueError(f"format {manifest['format']!r}, version {manifest['version']!r}")
    if counts.dtype != np.dtype("<i8") or counts.ndim != 1 or (counts < 0).any():
        raise ValueError("counts must be a vector of non-negative int64")
    recorded = manifest.pop("sha256")
    if recorded != _digest(manifest, counts):
        raise ValueError("the checksum does not fit the content")


def _digest(manifest: Mapping[str, Any], counts: Array) -> str:
    digest = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode())
    digest.update(counts.tobytes())
    return digest.hexdigest()


def _run_facts(case: Case, count: int) -> dict[str, Any]:
    more = {"values": dict(case.values or ()), "late": dict(case.late)}
    return {"inputs": dict(case.shapes), "count": count, **{k: v for k, v in more.items() if v}}


def _run(entry: Mapping[str, Any]) -> Run:
    shapes, values, late = (
        {str(name): tuple(map(int, entries)) for name, entries in entry.get(key, {}).items()}
        for key in ("inputs", "values", "late")
    )
    return replace(Case.of(shapes, values), late=tuple(sorted(late.items()))), int(entry["count"])


def _describe(histogram: Histogram) -> dict[str, Any]:
    fields = asdict(histogram)
    fields["counts"] = len(histogram.counts)
    for extreme in ("minimum", "maximum"):
        fields[extreme] = float.hex(fields[extreme])
    return fields


def _histograms(tensors: Mapping[str, Any], counts: Array) -> tuple[dict[str, Histogram], Array]:
    """The histograms of tensors, and the counts that are left."""
    histograms: dict[str, Histogram] = {}
    position = 0
    for name, fields in tensors.items():
        size = int(fields["counts"])
        part = counts[position : position + size].astype(np.int64)
        histograms[name] = _histogram(fields, part)
        position += size
    return histograms, counts[position:]


def _histogram(fields: Mapping[str, Any], counts: Array) -> Histogram:
    extremes = {key: float.fromhex(fields[key]) for key in ("minimum", "maximum")}
    whole = ("exponent", "start", "zeros", "nans", "infinities")
    numbers = {key: int(fields[key]) for key in whole}
    # Older files have none, because calibration refused infinities.
    numbers["negative_infinities"] = int(fields.get("negative_infinities", 0))
    sane = FINEST <= numbers["exponent"] <= 128 and abs(numbers["start"]) < 1 << 26
    sane = sane and len(counts) == int(fields["counts"]) <= BINS
    if not sane or (len(counts) and not all(map(math.isfinite, extremes.values()))):
        raise ValueError("a histogram is out of bounds")
    return Histogram(counts=counts, **extremes, **numbers)  # type: ignore[arg-type]

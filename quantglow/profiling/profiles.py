"""Profile: the values of every tensor of a model, independent of the quantization chosen later."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce

from quantglow.arguments import brief, file_path, instance, is_series
from quantglow.concise import Concise
from quantglow.errors import OptionError, ProfileMismatchError
from quantglow.graph.case import Case
from quantglow.graph.graph import Graph
from quantglow.profiling.drawing import drawn
from quantglow.profiling.histogram import Histogram
from quantglow.profiling.storage import read_profile, write_profile
from quantglow.webpage import embedded


@dataclass(frozen=True, repr=False)
class Profile(Concise):
    """One histogram for each float value, keyed by ONNX value name.

    ``source_hash`` binds it to the model, at any shape.  ``samples`` counts the runs of the model,
    ``cases`` the runs with each combination of input shapes and deciding values.
    """

    source_hash: str
    histograms: Mapping[str, Histogram]
    samples: int = 0
    cases: Mapping[Case, int] = field(default_factory=dict)

    @property
    def main_cases(self) -> list[Case]:
        """Shapes that most elements of the data have, for each combination of deciding values.

        The combination with most elements comes first.
        """

        def elements(case: Case) -> int:
            return self.cases[case] * sum(math.prod(shape) for _, shape in case.shapes)

        order = sorted(self.cases, key=lambda case: (elements(case), case), reverse=True)
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
        return Profile(self.source_hash, merged, self.samples + other.samples, cases)

    def check(self, graph: Graph) -> None:
        """Raise ``ProfileMismatchError`` if it was recorded on another model than that of
        ``graph``.
        """
        if graph.source_hash != self.source_hash:
            raise self._mismatch(graph.source_hash, "this model is")
        missing = [i.name for i in graph.inputs if i.type.dtype.is_float and i.name not in self]
        if missing:
            raise ProfileMismatchError(
                f"the profile has no range for the input(s) {missing}. "
                "Remedy: profile this graph again."
            )

    def __contains__(self, name: str) -> bool:
        return name in self.histograms and self.histograms[name].count > 0

    def _repr_html_(self) -> str:
        """The histograms in a notebook, with a search."""
        found = {name: drawn(each) for name, each in self.histograms.items() if each.count}
        title = f"Profile of {len(found)} tensors over {self.samples} sample(s)"
        return embedded(title, {"histograms": found})

    def _mismatch(self, found: str, what: str) -> ProfileMismatchError:
        return ProfileMismatchError(
            f"the profile was recorded on model {self.source_hash[:16] or '(no hash)'}, but "
            f"{what} {found[:16] or '(no hash)'}: another model, another export, or changed "
            "weights. Remedy: profile this model again."
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write an ``.npz`` file; an existing file is replaced at once or not at all."""
        runs = sorted(self.cases.items())
        write_profile(
            file_path("path", path), self.source_hash, self.histograms, self.samples, runs
        )

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Profile:
        """Read a file of ``save``.  Raises ``FileFormatError``."""
        source_hash, histograms, samples, runs = read_profile(file_path("path", path))
        return Profile(source_hash, histograms, samples, dict(runs))

    @staticmethod
    def merged(profiles: Iterable[Profile]) -> Profile:
        """All profiles merged.  Raises ``OptionError`` if there are none."""
        found: list[Profile] = list(profiles) if is_series(profiles) else []
        if not found:
            raise OptionError(f"profiles must be one Profile or more, got {brief(profiles)}")
        for profile in found:
            instance("profiles", profile, Profile, "Profiles")
        return reduce(Profile.merge, found)

"""``.qgm`` files with altered graphs: types are repaired, so that inference accepts them, and the
hashes are right.

Loading ends in a model or in the errors that it documents.  A model is run at drawn shapes,
described and saved again; its integers are those of the interpreter.
"""

from __future__ import annotations

import io
import json
import math
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import quantglow as qg
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.text import print_with_arrays, text_constants, text_scales
from quantglow.ir.symbolic.size import symbols as free_symbols
from quantglow.runtime.saved import archives
from quantglow.runtime.saved.members import Allowance
from quantglow.runtime.saved.saving import StoredText, read_texts
from quantglow.runtime.saved.stored_arrays import ArrayStore
from tests.fuzz import saved_files
from tests.fuzz.compare import Difference
from tests.fuzz.files import MOST_ELEMENTS, RUN_SECONDS, interrupted_after
from tests.fuzz.text_changes import change, conditions
from tests.fuzz.text_lines import Repaired, repaired
from tests.support.guarded import guarded
from tests.unit.export.onnx.export_cases import FLOAT, INT8
from tests.unit.export.onnx.export_kit import Kit

MOST_WRITTEN = 4096
"""Maximum number of elements of an array in a text."""
THREADS = (1, 1, 1, 2, 3)
MOST_JUDGED = 20_000
"""Maximum number of elements of a value that is compared with the interpreter's."""
UNREPAIRED = 0.2
"""Share of texts that are written with the lines that reading refuses."""
SAVED_EVERY = 4
"""One in so many files is saved again, which loads it once more."""
SIZES = ((1, 2, 3, 5, 9), (2, 3, 1, 17, 4))
"""Sizes of free dimensions at which a file is run, in their order."""
ALLOWED = (qg.FileFormatError, qg.OutOfMemoryError, qg.CompileBudgetError)
"""Errors of loading: damage, or what a file that is not damaged may take, too."""


@dataclass(frozen=True)
class Original:
    """The members of a file, and the text that is altered: number ``place`` of its graphs.

    ``symbols``: the sizes of free dimensions for which the text was made.
    """

    members: Mapping[str, bytes]
    texts: tuple[StoredText, ...]
    place: int
    symbols: Mapping[str, int]

    @property
    def lines(self) -> list[str]:
        return self.texts[self.place][0].splitlines()


@cache
def originals() -> tuple[Original, ...]:
    """A file for each operator, float and int8, and files with graphs for all shapes."""
    fixed, *free = saved_files.originals()
    collected = []
    for is_int8, cases in ((False, FLOAT), (True, INT8)):
        for make in cases.values():
            kit = Kit(0, is_int8)
            text = print_with_arrays(kit.graph(make(kit)), MOST_WRITTEN)
            if "ArrayMark" not in text:
                collected.append(Original(fixed, ((text, {}, {}),), 0, {}))
    return (
        *collected,
        *(o for members in free for o in general_originals(members) for _ in range(3)),
    )


def general_originals(members: Mapping[str, bytes]) -> list[Original]:
    """The graphs for all shapes of a file."""
    with zipfile.ZipFile(io.BytesIO(saved_files.sealed(dict(members)))) as archive:
        graphs, general = read_texts(
            archive, json.loads(members[archives.MANIFEST]), Allowance.of(archive)
        )
    entries = json.loads(members[archives.FREE])[archives.GENERAL]
    return [
        Original(members, (*graphs, *general), len(graphs) + i, entry["sizes"])
        for i, entry in enumerate(entries)
    ]


@dataclass(frozen=True)
class Altered:
    """An original with another text, which is accepted, or with the ``changed`` one."""

    original: Original
    result: Repaired
    changed: str = ""

    @property
    def judge(self) -> Graph | None:
        """The graph of the file, if it has one shape and the interpreter is done soon."""
        graph = self.result.graph
        if graph is None or self.changed or self.original.symbols:
            return None
        is_small = all(node.type.size <= MOST_JUDGED for node in graph.nodes)
        is_quick = all(not node.bodies and node.op != "External" for node in graph.nodes)
        return graph if is_small and is_quick else None

    def data(self) -> bytes:
        """The file, sealed anew."""
        original, graph = self.original, self.result.graph
        assert graph is not None
        texts = list(original.texts)
        text = self.changed or self.result.text
        texts[original.place] = (text, text_constants(graph), text_scales(graph))
        return packed(original.members, texts)


def altered(seed: int) -> Altered:
    """The text of a seed.  Raises whatever reading it raises, but for documented errors."""
    rng = np.random.default_rng([3, seed])
    known = originals()
    original = known[int(rng.integers(len(known)))]
    lines = original.lines
    change(rng, lines, [*original.symbols])
    if original.symbols and rng.random() < 0.3:
        original = with_conditions(original, rng)
    _, constants, scales = original.texts[original.place]
    sizes = free_symbols(original.symbols)[0] if original.symbols else {}
    changed = "\n".join(lines) if rng.random() < UNREPAIRED else ""
    return Altered(original, repaired(lines, constants, scales, sizes), changed)


def with_conditions(original: Original, rng: np.random.Generator) -> Original:
    """An original with other conditions of its graph."""
    free = json.loads(original.members[archives.FREE])
    entry = free[archives.GENERAL][original.place - len(original.texts)]
    entry["conditions"] = conditions(rng, entry["conditions"], [*original.symbols])
    return replace(original, members={**original.members, archives.FREE: json.dumps(free).encode()})


def packed(members: Mapping[str, bytes], texts: Sequence[StoredText]) -> bytes:
    """A file with these texts and their arrays."""
    manifest, store = json.loads(members[archives.MANIFEST]), ArrayStore()
    numbers = [[store.number_of(array) for array in value.values()] for _, value, _ in texts]
    scales = sorted({store.number_of(a) for _, _, value in texts for a in value.values()})
    names = [[*value] for _, value, _ in texts]
    cases = len(manifest["cases"])
    manifest |= {"constants": names[0], "cases": names[1 : 1 + cases]}
    manifest |= {archives.GENERAL: names[1 + cases :], "arrays": numbers, "scales": scales}
    manifest |= json.loads(json.dumps(store.manifest()))
    others = {n: d for n, d in members.items() if not n.startswith("constants/")}
    written = zip(archives.members_of_graphs(manifest), texts, strict=True)
    others |= {name: text.encode() for name, (text, _, _) in written}
    others |= {
        name: bytes(b"".join(archives.iterate_pieces(d))) for name, d in store.members().items()
    }
    manifest["members"] = {n: {} for n in others if n != archives.MANIFEST}
    return saved_files.sealed({**others, archives.MANIFEST: json.dumps(manifest).encode()})


def check_text(seed: int) -> Difference | None:
    """None if the file of a seed was used, or refused as the documentation says."""
    try:
        case = altered(seed)
    except Exception as error:  # noqa: BLE001 - any other error is the finding
        return Difference(f"reading raises {type(error).__name__}", str(error)[:300])
    if case.result.graph is None:
        return None
    try:
        data = case.data()
    except Exception as error:  # noqa: BLE001 - any other error is the finding
        return Difference(f"writing raises {type(error).__name__}", str(error)[:300])
    return check_file(data, seed, case.judge)


def check_file(data: bytes, seed: int = 0, judge: Graph | None = None) -> Difference | None:
    """``check_text`` of a file; ``judge``: the graph by which its integers are known."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.qgm"
        path.write_bytes(data)
        stage = "loading"
        try:
            with interrupted_after(RUN_SECONDS):
                model: Any = qg.load(path, num_threads=THREADS[seed % len(THREADS)])
                stage = "running"
                if wrong := run(model, seed, judge):
                    return Difference("other integers", f"than the interpreter in {wrong}")
                stage = "saving"
                str(model.report), repr(model)
                if seed % SAVED_EVERY == 0 and not has_parts(data):
                    model.save(path.with_suffix(".again.qgm"))
        except (*ALLOWED, KeyboardInterrupt):
            return None
        except Exception as error:  # noqa: BLE001 - any other error is the finding
            if stage == "running" and isinstance(error, qg.QuantglowError):
                return None
            return Difference(f"{stage} raises {type(error).__name__}", str(error)[:300])
    return None


def has_parts(data: bytes) -> bool:
    """Whether a file has a compiled part and the rest of the model, which is not saved again."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return archives.TAIL in archive.namelist()


def run(model: Any, seed: int, judge: Graph | None) -> list[str]:
    """Run a model at two shapes on odd values; the outputs whose integers differ from those that
    the interpreter has for ``judge``."""
    rng = np.random.default_rng([4, seed])
    is_free = any(not isinstance(d, int) for info in model.get_inputs() for d in info.shape)
    for sizes in SIZES if is_free else SIZES[:1]:
        feeds = {}
        known: dict[str, int] = {}
        for info in model.get_inputs():
            shape = [
                d if isinstance(d, int) else known.setdefault(str(d), sizes[len(known) % 5])
                for d in info.shape
            ]
            if math.prod(shape) > MOST_ELEMENTS:
                return []
            values = odd_values(rng, np.dtype(info.dtype), shape)
            feeds[info.name] = guarded(values, at_end=bool(rng.integers(2)))
        try:
            results = model.run(None, feeds)
        except qg.QuantglowError:
            continue
        if judge is not None:
            pairs = zip(judge.outputs, results, qg.interpret(judge, feeds), strict=True)
            return [name for (name, _), one, other in pairs if not same_integers(one, other)]
    return []


def same_integers(one: Any, other: Any) -> bool:
    """Whether arrays of integers or conditions are equal; floats may differ in their last bits."""
    return one.dtype.kind == "f" or np.array_equal(one, other)


ODD = (0.0, 1.0, -1.0, 0.3, -2.7, 100.0, 1e30, -1e30, np.nan, np.inf, -np.inf, 1e-38)


def odd_values(rng: np.random.Generator, dtype: np.dtype[Any], shape: Sequence[int]) -> Any:
    """Extreme values of a type among small ones."""
    if dtype.kind == "f":
        return rng.choice(np.array(ODD, dtype), shape)
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    limits = np.iinfo(dtype)
    extremes = np.array([0, 1, 2, 3, limits.min, limits.max], dtype)
    return rng.choice(extremes, shape)


def kept(seed: int, folder: Path) -> str:
    """Write the file of a seed and its text, as far as there are such."""
    try:
        case = altered(seed)
        path = folder / f"texts-{seed}.txt"
        path.write_text(case.result.text, errors="backslashreplace")
        if case.result.graph is not None:
            path = path.with_suffix(".qgm")
            path.write_bytes(case.data())
    except Exception as error:  # noqa: BLE001 - the finding
        return f"no file: {error!r}"
    return str(path)

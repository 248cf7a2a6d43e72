"""Damaged ``.qgm`` files whose hashes are right: texts and arrays altered at random.

Whatever the damage, loading, running, describing and saving again end in a result or in one of
quantglow's own errors.
"""

from __future__ import annotations

import io
import json
import math
import re
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import quantglow as qg
from quantglow.runtime.saved import archives
from tests.fuzz.compare import Difference
from tests.fuzz.files import MOST_ELEMENTS, RUN_SECONDS, altered_bytes, interrupted_after
from tests.support.cascade import picture
from tests.support.choosing_rows import choosing_rows
from tests.support.free_network import free_model, image
from tests.support.late_products import chosen_rows, late_products
from tests.support.opaque_results import opaque_results
from tests.support.rcnn import rcnn
from tests.support.small_network import small_model, small_samples
from tests.unit.runtime.saved.test_saved_versions import FILES

MANIFEST = "manifest.json"
SIZES = (1, 4, 9)
"""Sizes of free dimensions at which a file is run."""

NUMBERS = (0, 1, -1, 3, 2**31, 2**63, 2**70, 0.5, 1e308, math.nan, math.inf)
TEXTS = ("", "x", "N", "0x1p-9", "0x1p99999", "nan", "i8", "f32", "H*W", "(" * 50, "9" * 30)
ODD = (*NUMBERS, *TEXTS, None, True, [], {}, [[]], [None], {"x": 1}, [1, 2, 3])
TOKENS = re.compile(r"-?\d+\.?\d*(?:e-?\d+)?|'[^']*'|\w+|[^\w\s]")
WORDS = (
    "0",
    "-1",
    "2147483648",
    "9223372036854775808",
    "1e308",
    "nan",
    "None",
    "()",
    "'x'",
    "N",
    "",
)


@cache
def originals() -> tuple[dict[str, bytes], ...]:
    """The members of an int8 file of fixed shapes, one of free shapes, others whose results decide
    shapes, one of opaque results, and those of earlier releases that have parts.
    """
    samples = [image((1, 3, 8, 8), seed) for seed in range(4)]
    images = [picture(40 + seed, 44, seed) for seed in range(4)]
    late = [chosen_rows(8 + seed, seed) for seed in range(4)]
    models = (
        qg.quantize_and_compile(small_model(), small_samples(), progress=False, verify=False),
        qg.quantize_and_compile(free_model(), samples, progress=False, verify=False),
        qg.compile(choosing_rows("rows"), num_threads=1),
        qg.quantize_and_compile(late_products(), late, progress=False, verify=False),
        qg.quantize_and_compile(rcnn(0.4), images, progress=False, verify=False),
    )
    with opaque_results():
        opaque = qg.quantize_and_compile(late_products(), late, progress=False, verify=False)
    in_parts = (contents_of(FILES / f"{name}.qgm") for name in ("version10", "nested"))
    return (*map(members_of, (*models, opaque)), *in_parts)


def members_of(model: Any) -> dict[str, bytes]:
    """The members of a model's file."""
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "model.qgm")
        return contents_of(Path(folder) / "model.qgm")


def contents_of(path: Path) -> dict[str, bytes]:
    """The members of a file."""
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def damaged(seed: int) -> bytes:
    """The file of a seed."""
    rng = np.random.default_rng(seed)
    known = originals()
    return with_damage(known[int(rng.integers(len(known)))], rng)


def with_damage(original: Mapping[str, bytes], rng: np.random.Generator) -> bytes:
    """A file with one altered member; of a file inside of it, another one."""
    members = dict(original)
    names = [name for name in members if name != MANIFEST]
    name = names[int(rng.integers(len(names)))]
    if name.endswith(".qgm") and rng.random() < 0.8:
        with zipfile.ZipFile(io.BytesIO(members[name])) as archive:
            inner = {n: archive.read(n) for n in archive.namelist()}
        members[name] = with_damage(inner, rng)
    elif name.endswith(".json"):
        members[name] = altered_json(members[name], rng)
    elif name.endswith(".txt"):
        members[name] = altered_text(members[name].decode(), rng).encode()
    else:
        members[name] = altered_bytes(bytearray(members[name]), rng)
    return sealed(members)


def sealed(members: dict[str, bytes]) -> bytes:
    """A file of these members, whose hashes are right."""
    manifest = json.loads(members[MANIFEST])
    manifest["members"] = {n: archives.describe(members[n]) for n in manifest["members"]}
    manifest["sha256"] = archives.manifest_digest(manifest)
    o = io.BytesIO()
    with zipfile.ZipFile(o, "w") as archive:
        for name, data in {**members, MANIFEST: json.dumps(manifest).encode()}.items():
            archive.writestr(name, data)
    return o.getvalue()


def altered_json(data: bytes, rng: np.random.Generator) -> bytes:
    """One or two entries replaced or removed."""
    value = json.loads(data)
    for _ in range(int(rng.integers(1, 3))):
        places = list(entries(value))
        if not places:
            break
        owner, key = places[int(rng.integers(len(places)))]
        if rng.random() < 0.2:
            del owner[key]
        else:
            owner[key] = ODD[int(rng.integers(len(ODD)))]
    return json.dumps(value).encode()


def entries(value: Any) -> Iterator[tuple[Any, Any]]:
    """Each list and dict inside of a value, with each of its keys."""
    if not isinstance(value, dict | list):
        return
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        yield from entries(value[key])


def altered_text(text: str, rng: np.random.Generator) -> str:
    """A word or two replaced by others of the text, or by odd ones."""
    for _ in range(int(rng.integers(1, 3))):
        actual = list(TOKENS.finditer(text))
        old, other = (actual[int(i)] for i in rng.integers(len(actual), size=2))
        new = other.group() if rng.random() < 0.5 else WORDS[int(rng.integers(len(WORDS)))]
        text = text[: old.start()] + new + text[old.end() :]
    return text


def check_saved(data: bytes) -> Difference | None:
    """None if the file was used, refused with an error of quantglow's own, or ran until Ctrl-C."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.qgm"
        path.write_bytes(data)
        try:
            with interrupted_after(RUN_SECONDS):
                used(path)
        except (qg.QuantglowError, KeyboardInterrupt):
            return None
        except Exception as error:  # noqa: BLE001 - any other error is the finding
            return Difference(f"raises {type(error).__name__}", str(error)[:300])
    return None


def used(path: Path) -> None:
    """Load a file, run it at several shapes, describe it and save it again."""
    model: Any = qg.load(path, num_threads=1)
    for size in SIZES:
        feeds = {}
        for info in model.get_inputs():
            shape = [dim if isinstance(dim, int) else size for dim in info.shape]
            if math.prod(shape) > MOST_ELEMENTS:
                return
            feeds[info.name] = np.ones(shape, info.dtype)
        try:
            model.run(None, feeds)
        except qg.QuantglowError:
            continue
    str(model.report), repr(model)
    model.save(path.with_suffix(".again.qgm"))

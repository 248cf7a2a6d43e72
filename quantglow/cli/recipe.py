"""Calibration recipes: TOML files with the quantization of a model and its accuracy gate.

``calibration/README.md`` explains every entry.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from quantglow.api.pipeline.request import AccuracyContract
from quantglow.cli.recipe_data import READERS, STEPS, ImageSet, preprocess
from quantglow.quantization.options import QuantizationConfig
from quantglow.support.arguments import choice, integer, number, shapes
from quantglow.support.arrays import Array
from quantglow.support.errors import CalibrationError, OptionError
from quantglow.support.files import cause, read_arrays

ROOT_MARKS = (".git", "pyproject.toml")
"""Names that mark the folder of a repository."""

MAX_NBYTES, MAX_COUNT = 1 << 20, 1 << 24
"""Maximum size of a recipe in bytes, and number of its images."""


@dataclass(frozen=True)
class Gate:
    """Limits that the int8 model must keep; None is no limit.

    min_sqnr_db    SQNR of every output against float, in dB
    min_accuracy   share of right answers of the first output
    max_drop       accuracy of float minus that of int8
    min_agreement  share of answers equal to float's
    """

    min_sqnr_db: float | None = None
    min_accuracy: float | None = None
    max_drop: float | None = None
    min_agreement: float | None = None


@dataclass(frozen=True)
class DataSet:
    """Arrays of an ``.npz`` file: ``arrays`` maps a role (images, labels, widths) to a name."""

    file: Path
    arrays: Mapping[str, str]
    count: int | None = None
    crops: str = "centre"
    seed: int = 0


@dataclass(frozen=True)
class Recipe:
    """One network: model, data, preprocessing, options, gate and the profile it produced."""

    path: Path
    model: Path
    calibration: DataSet
    evaluation: DataSet
    steps: tuple[tuple[str, Any], ...]
    config: QuantizationConfig
    gate: Gate
    contract: AccuracyContract | None = None
    profile: Path | None = None
    input_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    obtain: str = ""
    answers: str = "class"


def load_recipe(path: str | os.PathLike[str]) -> Recipe:
    """The recipe of a TOML file.  Raises ``OptionError``, which names the file and the entry."""
    file = Path(path)
    try:
        if file.stat().st_size > MAX_NBYTES:
            raise OptionError(f"larger than {MAX_NBYTES} bytes")
        data = tomllib.loads(file.read_text(encoding="utf-8"))
        return _recipe(file, data)
    except (OSError, ValueError, RecursionError) as error:
        raise OptionError(
            f"recipe {os.fspath(path)!r}: {cause(error)}. See calibration/README.md."
        ) from error


def load_images(data: DataSet, steps: tuple[tuple[str, Any], ...]) -> tuple[Array, Array | None]:
    """Model inputs, and the labels if the data set has them.  Raises ``CalibrationError``."""
    try:
        stored = read_arrays(data.file)
        arrays = {role: stored[name] for role, name in data.arrays.items()}
    except (OSError, ValueError, KeyError) as error:
        raise CalibrationError(
            f"cannot read {list(data.arrays.values())} of {str(data.file)!r}: {error}. "
            "Remedy: look at the names with numpy.load(...).files."
        ) from error
    sizes = {name: len(array) if array.ndim else 0 for name, array in arrays.items()}
    if len(set(sizes.values())) != 1 or not arrays["images"].size or arrays["images"].ndim < 3:
        raise CalibrationError(
            f"the arrays of {str(data.file)!r} need one entry for each image [H, W] or "
            f"[H, W, C], got {sizes}"
        )
    if arrays["images"].dtype.kind not in "biuf":
        raise CalibrationError(
            f"the images of {str(data.file)!r} are {arrays['images'].dtype}. "
            "Remedy: store integers or floats."
        )
    rows = _rows(len(arrays["images"]), data)
    arrays = {role: array[rows] for role, array in arrays.items()}
    images = ImageSet(arrays["images"], arrays, data.crops, data.seed)
    return preprocess(images, steps), arrays.get("labels")


def _rows(available: int, data: DataSet) -> Array:
    """The first rows; for random crops drawn rows, repeated only if there are too few."""
    count = available if data.count is None else data.count
    if data.crops == "centre":
        return np.arange(min(count, available))
    rng = np.random.default_rng(data.seed)
    rounds = -(-count // available)
    return np.concatenate([rng.permutation(available) for _ in range(rounds)])[:count]


def _recipe(file: Path, data: dict[str, Any]) -> Recipe:
    entries = ("model", "data", "preprocessing", "options", "control", "gate", "profile")
    tables = {name: _table(data, name, "") for name in entries}
    _refuse(data, "", entries)
    model, sets, profile = tables["model"], tables["data"], tables["profile"]
    _refuse(model, "model", ("path", "input_shapes", "obtain", "answers"))
    _refuse(sets, "data", ("path", "calibration", "evaluation"))
    _refuse(tables["preprocessing"], "preprocessing", ("steps",))
    _refuse(profile, "profile", ("path",))
    source = _inside(file, _text(sets, "path", "data"))
    return Recipe(
        path=file,
        model=_inside(file, _text(model, "path", "model")),
        calibration=_data_set(source, sets, "calibration"),
        evaluation=_data_set(source, sets, "evaluation"),
        steps=_steps(tables["preprocessing"].get("steps", [])),
        config=_config(tables["options"]),
        gate=_gate(tables["gate"]),
        contract=_contract(tables["control"]),
        profile=_inside(file, _text(profile, "path", "profile")) if profile else None,
        input_shapes=shapes("model.input_shapes", model.get("input_shapes")) or {},
        obtain=_text(model, "obtain", "model") if "obtain" in model else "",
        answers=choice("model.answers", model.get("answers", "class"), READERS),
    )


def _repository(file: Path) -> Path:
    """The folder that paths of a recipe must not leave: its repository, else its own folder."""
    folder = Path(os.path.realpath(file)).parent
    for candidate in (folder, *folder.parents):
        if any((candidate / mark).exists() for mark in ROOT_MARKS):
            return candidate
    return folder


def _inside(file: Path, text: str) -> Path:
    root = _repository(file)
    path = Path(os.path.realpath(Path(os.path.realpath(file)).parent / text))
    if Path(text).is_absolute() or not path.is_relative_to(root):
        raise OptionError(
            f"path {text!r} leaves the folder {str(root)!r}. "
            "Remedy: write it relative to the recipe, to a file of the repository"
        )
    return path


def _table(data: Mapping[str, Any], name: str, prefix: str) -> dict[str, Any]:
    table = data.get(name, {})
    if not isinstance(table, dict):
        raise OptionError(f"{prefix}{name} must be a table")
    return table


def _refuse(table: Mapping[str, Any], name: str, entries: tuple[str, ...]) -> None:
    if unknown := sorted(table.keys() - set(entries)):
        where = f"[{name}]" if name else "the file"
        raise OptionError(f"unknown entries {unknown} in {where}; known are {sorted(entries)}")


def _text(table: Mapping[str, Any], key: str, name: str) -> str:
    value = table.get(key)
    if not isinstance(value, str) or not value or "\0" in value:
        raise OptionError(f'[{name}] needs {key} = "…", got {value!r}')
    return value


def _data_set(file: Path, tables: Mapping[str, Any], name: str) -> DataSet:
    table = dict(_table(tables, name, "data."))
    count, seed = table.pop("count", None), table.pop("seed", 0)
    crops = choice(f"data.{name}.crops", table.pop("crops", "centre"), ("centre", "random"))
    if count is not None:
        integer(f"data.{name}.count", count, 1, MAX_COUNT)
    integer(f"data.{name}.seed", seed)
    for role in table:
        _text(table, role, f"data.{name}")
    _text(table, "images", f"data.{name}")
    return DataSet(file, table, count, crops, seed)


def _steps(steps: Any) -> tuple[tuple[str, Any], ...]:
    pairs: list[tuple[str, Any]] = []
    for step in steps if isinstance(steps, list) else [steps]:
        if not isinstance(step, dict) or len(step) != 1:
            raise OptionError(f"a step is a table with one entry as {{ divide = 255 }}: {step!r}")
        ((name, argument),) = step.items()
        pairs.append((choice("step", name, STEPS), argument))
    return tuple(pairs)


def _config(table: dict[str, Any]) -> QuantizationConfig:
    _refuse(table, "options", tuple(f.name for f in fields(QuantizationConfig)))
    try:
        return QuantizationConfig(**table)
    except TypeError as error:
        raise OptionError(f"[options]: {error}") from error


def _gate(table: dict[str, Any]) -> Gate:
    _refuse(table, "gate", tuple(f.name for f in fields(Gate)))
    return Gate(**{name: number(f"gate.{name}", value) for name, value in table.items()})


def _contract(table: dict[str, Any]) -> AccuracyContract | None:
    if not table:
        return None
    _refuse(table, "control", ("max_drop", "max_minutes"))
    if "max_drop" not in table:
        raise OptionError("[control] needs 'max_drop', the relative error that is allowed")
    return AccuracyContract(**table)

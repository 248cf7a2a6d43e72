"""``quantglow calibrate RECIPE``: profile, quantize, evaluate and check the gate."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from quantglow.api.import_model import import_model, open_float_graph
from quantglow.api.quantize_and_compile import quantize_under
from quantglow.cli.arguments import option_flags
from quantglow.cli.files import check_writable
from quantglow.cli.recipe import Recipe, load_images, load_recipe
from quantglow.cli.recipe_data import READERS, Reader, check_labels, same
from quantglow.evaluation.metrics import ErrorSums
from quantglow.evaluation.outputs import reference
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.signature import declared_only
from quantglow.profiling import Profile
from quantglow.profiling.samples.feeds import Feeds, read_feeds
from quantglow.report.tables import ReportTable, number
from quantglow.runtime.compiled import CompiledModel
from quantglow.runtime.programs.build import Compiler
from quantglow.support.arrays import Array
from quantglow.support.errors import AccuracyDropError, CalibrationError, ModelError

PROFILE_TOLERANCE = 0.01
"""Tolerance on the ends of a range, as a share of it: float sums differ between processors."""

PIECE = 64
"""Number of images whose float outputs are held at a time."""


@dataclass(frozen=True)
class MeasuredAccuracy:
    """Metrics of int8 against float on the evaluation data; accuracies are None without labels."""

    samples: int
    compared_with: str
    sqnr_db: float
    agreement: float
    float_accuracy: float | None = None
    accuracy: float | None = None


@dataclass(frozen=True)
class Figure:
    """One row of the result: a figure, the gate's ``limit``, and whether it was ``missed``."""

    name: str
    value: str
    limit: str = ""
    missed: bool = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", help="TOML file, see calibration/README.md")
    parser.add_argument(
        "--update-profile", action="store_true", help="write the profile that the recipe names"
    )
    option_flags(parser, ["num_threads"])


def run(options: argparse.Namespace, console: Console) -> None:
    """Print the table.  Raises ``AccuracyDropError`` if the gate is missed."""
    recipe = load_recipe(options.recipe)
    if options.update_profile and recipe.profile:
        check_writable(str(recipe.profile))
    graph, feeds = prepare(recipe)
    read = READERS[recipe.answers](recipe.model)
    compiler = Compiler.of(num_threads=options.num_threads)
    compiled = quantize_under(recipe.contract, graph, feeds, recipe.config, compiler)
    profile = compiled.profile
    assert profile is not None
    if options.update_profile and profile.samples < len(feeds):
        raise CalibrationError(
            f"the profile is not written: Ctrl-C ended it after {profile.samples} of {len(feeds)} "
            "images. Remedy: let it end."
        )
    measured = _evaluate(recipe, graph, compiled, read)
    if options.update_profile and recipe.profile:
        profile.save(recipe.profile)
    figures = (*_gate_figures(recipe, measured), *_profile_figures(recipe, profile))
    missed = [f"{f.name} {f.value}, wanted {f.limit}" for f in figures if f.missed]
    words = f"misses its gate: {'; '.join(missed)}" if missed else "holds its gate"
    console.print(f"{recipe.path.name} {words}.", highlight=False, markup=False, soft_wrap=True)
    console.print(_results_table(recipe, measured, figures).rich())
    if missed:
        raise AccuracyDropError(
            f"recipe {str(recipe.path)!r} misses its gate: {'; '.join(missed)}. Remedy: look at "
            "the layers with `quantglow debug`, or correct [options], [gate] or the profile.",
            compiled,
        )


def prepare(recipe: Recipe) -> tuple[Graph, list[Feeds]]:
    """The float graph and the calibration feeds."""
    if not os.path.isfile(recipe.model):
        hint = f" Remedy: {recipe.obtain}" if recipe.obtain else ""
        raise ModelError(f"the model {str(recipe.model)!r} does not exist.{hint}")
    graph = open_float_graph(import_model(recipe.model, recipe.input_shapes or None))
    images, _ = load_images(recipe.calibration, recipe.steps)
    return graph, _feeds_of_images(graph, images)


def _feeds_of_images(graph: Graph, images: Array) -> list[Feeds]:
    """One feed for each image.

    Raises ``ModelError`` unless the model takes images one by one, ``CalibrationError`` for images
    that do not fit it.
    """
    if len(graph.inputs) != 1 or graph.inputs[0].type.fixed_shape[:1] != (1,):
        kinds = [f"{i.name}: {i.type}" for i in graph.inputs]
        raise ModelError(f"a recipe needs a model with one input of batch 1, this has {kinds}")
    return list[Feeds](read_feeds(images, graph.signature))


def _evaluate(
    recipe: Recipe, graph: Graph, compiled: CompiledModel, read: Reader
) -> MeasuredAccuracy:
    """Evaluation of the compiled model against float; ``read`` gives the answers of outputs."""
    images, labels = load_images(recipe.evaluation, recipe.steps)
    check_labels(labels, recipe.answers, graph)
    feeds = _feeds_of_images(graph, images)
    sums = [ErrorSums() for _ in graph.outputs]
    answers, got, names = list[Any](), list[Any](), set[str]()
    for start in range(0, len(feeds), PIECE):
        piece = feeds[start : start + PIECE]
        with reference(recipe.model, graph, piece) as waiting:
            expected = waiting()
        names.add(expected.name)
        for sample, exact in zip(piece, expected.outputs, strict=True):
            results = compiled.run(None, declared_only(graph.signature.inputs, sample))
            sums = [s + ErrorSums.of(a, b) for s, a, b in zip(sums, exact, results, strict=True)]
            answers.append(read(exact[0]))
            got.append(read(results[0]))
    accuracies = [None if labels is None else same(a, list(labels)) for a in (answers, got)]
    worst = min(s.sqnr_db for s in sums)
    name = " and ".join(sorted(names))
    return MeasuredAccuracy(len(feeds), name, worst, same(answers, got), *accuracies)


def _gate_figures(recipe: Recipe, measured: MeasuredAccuracy) -> Iterator[Figure]:
    """Each figure with its gate; a limit on a figure that cannot be measured is missed."""
    gate, is_measured = recipe.gate, measured.accuracy is not None
    drop = (measured.float_accuracy or 0.0) - (measured.accuracy or 0.0) if is_measured else None
    yield _figure("SQNR dB", measured.sqnr_db, gate.min_sqnr_db, "{:.2f}")
    yield _figure("agreement with float", measured.agreement, gate.min_agreement, "{:.2%}")
    yield Figure("accuracy of float", number(measured.float_accuracy, "{:.2%}"))
    yield _figure("accuracy of int8", measured.accuracy, gate.min_accuracy, "{:.2%}")
    yield _figure("drop", drop, gate.max_drop, "{:.2%}", at_most=True)


def _figure(
    name: str, value: float | None, limit: float | None, pattern: str, at_most: bool = False
) -> Figure:
    if limit is None:
        return Figure(name, number(value, pattern))
    shown = ("at most " if at_most else "at least ") + pattern.format(limit)
    # Shares are quotients of counts, so rounding must not decide.
    good = value is not None and (value <= limit + 1e-9 if at_most else value >= limit - 1e-9)
    return Figure(name, number(value, pattern), shown, not good)


def _profile_figures(recipe: Recipe, profile: Profile) -> Iterator[Figure]:
    """Deviation of the recorded profile from the new one."""
    if recipe.profile is None:
        return
    name, limit = "recorded profile", f"equal to {PROFILE_TOLERANCE:.0%} (--update-profile)"
    if not os.path.isfile(recipe.profile):
        yield Figure(name, "missing", limit, missed=True)
        return
    recorded = Profile.load(recipe.profile)
    if recorded.source_hash != profile.source_hash:
        yield Figure(name, "of another model", limit, missed=True)
        return
    far = deviation(recorded, profile)
    yield Figure(name, f"differs by {far:.2g}", limit, not far <= PROFILE_TOLERANCE)


def deviation(recorded: Profile, profile: Profile) -> float:
    """Largest deviation of an end of a range, as a share of the range; 1 if a range is missing."""
    if recorded.histograms.keys() != profile.histograms.keys():
        return 1.0
    distances = [0.0]
    for name, one in recorded.histograms.items():
        other = profile.histograms[name]
        ends = (abs(one.minimum - other.minimum), abs(one.maximum - other.maximum))
        if max(ends):
            width = max(abs(one.maximum), abs(one.minimum), one.maximum - one.minimum)
            distances.append(max(ends) / width if width else math.inf)
    return max(distances)


def _results_table(
    recipe: Recipe, measured: MeasuredAccuracy, figures: tuple[Figure, ...]
) -> ReportTable:
    """All figures with their limits, and whether they hold."""
    title = f"{recipe.path.name}: {measured.samples} samples against {measured.compared_with}"
    verdicts = {False: "holds", True: "MISSED"}
    rows = [(f.name, f.value, f.limit, verdicts[f.missed] if f.limit else "") for f in figures]
    return ReportTable(title, ("figure", "int8", "gate", ""), rows, frozenset({"int8"}))

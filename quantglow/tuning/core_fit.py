"""Fit of ``Core`` to measured tiles of convolutions: ``quantglow tune --machine``.

A shape's tiles are timed, and the costs are moved until the model is close to all times, up to one
factor (the clock), and its choice of each shape's tile close to the fastest one.  Some shapes are
held out: costs that choose worse tiles there than the listed ones are not kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from quantglow.codegen.llvm.isa.costs import Choices, Core, KernelChoice, StepCost
from quantglow.codegen.llvm.isa.target import Target
from quantglow.codegen.llvm.kernels.contraction.tiling import FAR, Tile, all_cycles
from quantglow.codegen.llvm.kernels.conv.forms import choose_kernel
from quantglow.codegen.llvm.kernels.conv.implicit_gemm import EARLY, EVEN
from quantglow.codegen.llvm.machine import keep_core
from quantglow.codegen.llvm.targets import KNOWN_CORES, resolve
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input
from quantglow.ir.ops import Conv
from quantglow.ir.types import DType, ElementType, QuantParams, TensorType
from quantglow.runtime.native.buffers import HAS_LARGE_PAGES, Allocate, LargePages, aligned_bytes
from quantglow.runtime.native.peak import reading_rate
from quantglow.support.arrays import Array
from quantglow.support.classes import cached_property
from quantglow.support.errors import BackendError
from quantglow.tuning.measuring import Job, Measurement, Measurer, Progress, Work, plan_tasks
from quantglow.tuning.trials import FAR_NBYTES, Task

PLAIN = "plain"
MOST_TILES = 30
"""Tiles timed of each shape."""
HELD_OUT = 3
"""Every so many-th shape judges the costs and has no part in the fit."""
LOST_WEIGHT = 50.0
"""Weight of the time lost by chosen tiles beside the error of modeled times."""
MOVED_WEIGHT = 0.1
"""Weight of the distance from the known core where the search began."""
SOFTNESS = 0.01
"""Share of modeled cycles that makes a tile e times less likely."""
NEAR = 0.3
"""Share of time by which tiles are slower than the best one and count e times less."""
FREE_ISSUE = 8.0
"""Instructions in a cycle for cores where they bound nothing."""
FASTER = 0.98
"""Ratio below which a setting that is on or off is taken to be faster."""
FACTORS = (0.5, 0.7, 0.85, 0.95, 1.05, 1.2, 1.4, 2.0)
"""Steps of the search in one cost."""
ROUNDS = 6
FITTED = ("issue", "latency", "weights", "far_weights", "crowded", "overlap")
"""The costs that are fitted, beside those of ``finish``."""
LEAST = (0.5, 1.0, 0.01, 0.05, 0.1, 1.0, 0.05, 0.05, 0.05)
"""The least of each from which a factor moves it."""


@dataclass(frozen=True)
class Shape:
    """A convolution of ``channels`` to ``results`` channels on a square image."""

    size: int
    channels: int
    results: int
    window: int = 1
    dtype: DType = DType.I8


SHAPES = (
    Shape(112, 16, 96),
    Shape(56, 24, 144),
    Shape(56, 64, 64),
    Shape(56, 64, 64, 3),
    Shape(56, 144, 24),
    Shape(28, 32, 192),
    Shape(28, 128, 128, 3),
    Shape(28, 192, 32),
    Shape(28, 256, 512),
    Shape(14, 64, 384),
    Shape(14, 256, 256, 3),
    Shape(14, 384, 96),
    Shape(14, 576, 96),
    Shape(14, 1024, 256),
    Shape(7, 160, 960),
    Shape(7, 320, 1280),
    Shape(7, 512, 512, 3),
    Shape(7, 512, 2048),
    Shape(1, 1280, 1000),
    Shape(56, 24, 144, 1, DType.F32),
    Shape(28, 64, 64, 3, DType.F32),
    Shape(14, 384, 64, 1, DType.F32),
    Shape(14, 96, 576, 1, DType.F32),
    Shape(7, 512, 512, 1, DType.F32),
)


def build_graph(shapes: Sequence[Shape]) -> Graph:
    """A graph of all these convolutions, each with an input of its own."""
    convolutions = [_convolution(shape, f"{number}") for number, shape in enumerate(shapes)]
    inputs = tuple(conv.x for conv in convolutions if isinstance(conv.x, Input))
    return Graph(inputs, tuple((conv.name, conv) for conv in convolutions))


def _convolution(shape: Shape, name: str) -> Conv:
    """One convolution with random weights."""
    rng = np.random.default_rng(0)
    size, pad = (shape.window, shape.window, shape.channels, shape.results), shape.window // 2
    image, is_float = (1, shape.size, shape.size, shape.channels), shape.dtype.is_float
    integer = ElementType(DType.I8, QuantParams.per_tensor(0.05, 3))
    kind = TensorType(DType.F32, image) if is_float else TensorType(DType.I8, image, integer.quant)
    if is_float:
        w = Constant(name=f"{name}.w", value=rng.standard_normal(size, np.float32))
        b = Constant(name=f"{name}.b", value=np.zeros(shape.results, np.float32))
    else:
        scales = QuantParams.symmetric(np.full(shape.results, 0.01, np.float32), 3)
        codes = rng.integers(-127, 128, size, np.int8)
        w = Constant(name=f"{name}.w", value=codes, element=ElementType(DType.I8, scales))
        b = Constant(name=f"{name}.b", value=np.zeros(shape.results, np.int32))
    x = Input(name=f"{name}.x", tensor=kind)
    return Conv(name=name, x=x, w=w, b=b, pads=(pad,) * 4, out=None if is_float else integer)


@dataclass(frozen=True)
class Timed:
    """The times of a shape's tiles, over that of the default in the same rounds; ``work`` and
    ``cost``: the arguments of ``all_cycles``."""

    work: tuple[int, int, int, int]
    cost: StepCost
    ratios: dict[Tile, float]

    def cycles(self, core: Core) -> Array:
        """The modeled cycles of each tile."""
        cost = replace(self.cost, core=core)
        return np.array([all_cycles(tile, *self.work, cost) for tile in self.ratios])

    @cached_property
    def times(self) -> Array:
        """The time of each tile."""
        return np.array([*self.ratios.values()])

    @cached_property
    def slower(self) -> Array:
        """Time above that of the best tile, as a share of it."""
        return np.asarray(self.times / self.times.min() - 1)

    def regret(self, core: Core) -> float:
        """Time lost by the tile that the model chooses, as a share of the best tile's time."""
        return float(self.slower[int(np.argmin(self.cycles(core)))])


@dataclass(frozen=True)
class CoreFit:
    """Costs before and after, and the time that their tiles lose on shapes held out.

    ``listed``: the costs that were used before, those of the table of names at first.
    """

    target: Target
    listed: Core
    fitted: Core
    listed_loss: float
    fitted_loss: float
    points: int
    path: Path | None = None

    @property
    def is_kept(self) -> bool:
        """Whether the fitted costs choose no worse tiles than the listed ones."""
        return self.fitted_loss <= self.listed_loss

    @property
    def core(self) -> Core:
        """The costs to use; settings that are on or off are those measured in any case."""
        even, large = self.fitted.even_prefetch, self.fitted.large_pages
        costs = self.fitted if self.is_kept else self.listed
        return replace(costs, even_prefetch=even, large_pages=large)


def measure_core(progress: Progress) -> CoreFit:
    """Measure this machine for about a minute: the costs of its core.

    ``progress`` gets the number of tiles timed so far.

    Raises ``BackendError`` if nothing could be measured.
    """
    target = replace(resolve("native"), choices=Choices())
    timed_kernels = _time_shapes(target, progress)
    fitting = [each for i, each in enumerate(timed_kernels) if i % HELD_OUT]
    judging = timed_kernels[::HELD_OUT]
    core = fit(fitting, (target.core, *KNOWN_CORES))
    core = replace(
        core,
        even_prefetch=_prefers_even(target),
        large_pages=target.core.large_pages or _prefers_large_pages(target),
    )
    losses = [float(np.mean([each.regret(c) for each in judging])) for c in (target.core, core)]
    points = sum(len(each.ratios) for each in timed_kernels)
    return CoreFit(target, target.core, core, losses[0], losses[1], points)


def store(core_fit: CoreFit) -> CoreFit:
    """The fit, kept for all later processes.  Raises ``BackendError``."""
    facts = {
        "points": core_fit.points,
        "listed_loss": core_fit.listed_loss,
        "fitted_loss": core_fit.fitted_loss,
    }
    try:
        path = keep_core(core_fit.target.name, core_fit.core, facts)
    except OSError as error:
        raise BackendError(f"the costs of this machine cannot be stored: {error}") from error
    if path is None:
        raise BackendError(
            "there is no place for the costs of this machine: the cache is switched off, or the "
            "system does not name its processor. Remedy: set QUANTGLOW_CACHE_DIR to a folder."
        )
    resolve.cache_clear()
    return replace(core_fit, path=path)


def _time_shapes(target: Target, progress: Progress) -> list[Timed]:
    """The times of tiles of all shapes.  Raises ``BackendError``."""
    graph = build_graph(SHAPES)
    tasks, rng = plan_tasks([graph], target)[0], np.random.default_rng(0)
    jobs: list[Job] = []
    for task in tasks:
        kernel = choose_kernel(task.step, target, KernelChoice(PLAIN))
        assert kernel is not None
        tiles = kernel.possible_tiles
        chosen = rng.permutation(len(tiles))[:MOST_TILES].tolist()
        picked = {kernel.modeled_tile: None, **{tiles[i]: None for i in chosen}}
        far = FAR_NBYTES if kernel.vectors * kernel.total_steps > FAR else 0
        shape = [(t.rows, t.columns, t.vectors) for t in picked]
        jobs += [Job(task.key, KernelChoice(PLAIN, tile), far) for tile in shape]
    measured = Measurer(Work.of([graph], target), samples=4).run(jobs, progress)
    return time_tasks(tasks, measured)


def time_tasks(tasks: Sequence[Task], measured: Sequence[Measurement]) -> list[Timed]:
    """The times of each task.  Raises ``BackendError`` if one has none."""
    timings = []
    for task in tasks:
        kernel = choose_kernel(task.step, task.target, KernelChoice(PLAIN))
        assert kernel is not None
        measurements = [m for m in measured if m.job.task == task.key]
        timed = [(m.job.choice.tile, m.ratio) for m in measurements if m.seconds]
        ratios = {Tile(*tile): ratio for tile, ratio in timed if tile is not None}
        if not ratios:
            reasons = "; ".join(sorted({m.failure for m in measurements}))
            raise BackendError(f"no tile of {task.shape} could be measured: {reasons}")
        work = (*kernel.image_size, kernel.vectors, kernel.total_steps)
        timings.append(Timed(work, kernel.dot.cost, ratios))
    return timings


def loss(timed: Sequence[Timed], core: Core) -> float:
    """Mean time lost by chosen tiles, and the error of the logarithms of modeled times.

    The choice is softened, so that the loss has slopes: a tile is chosen with a probability that
    falls with its modeled cycles above the least ones.  Errors of fast tiles count most.
    """
    lost, errors, weights = [], [], []
    for each in timed:
        cycles, slower = np.maximum(each.cycles(core), 1.0), each.slower
        likely = np.exp(-(cycles / cycles.min() - 1) / SOFTNESS)
        lost.append(float(likely @ slower / likely.sum()))
        weight = np.exp(-slower / NEAR)
        error = np.log(cycles / each.times)
        errors.append(np.abs(error - np.average(error, weights=weight)))
        weights.append(weight)
    mean_error = float(np.average(np.concatenate(errors), weights=np.concatenate(weights)))
    return mean_error + LOST_WEIGHT * float(np.mean(lost))


def fit(timed: Sequence[Timed], starts: Sequence[Core]) -> Core:
    """Costs with the least ``loss`` near those of a known core, by a search in one cost after the
    other from each of them."""
    ends = [_descend(timed, start) for start in dict.fromkeys(starts)]
    return min(ends, key=lambda pair: pair[0])[1]


def _descend(timed: Sequence[Timed], start: Core) -> tuple[float, Core]:
    if not np.isfinite(start.issue):
        start = replace(start, issue=FREE_ISSUE)
    core, origin = start, np.log(np.maximum(_costs(start), LEAST))

    def value(tried: Core) -> float:
        moved = float(np.mean(np.abs(np.log(np.maximum(_costs(tried), LEAST)) - origin)))
        return loss(timed, tried) + MOVED_WEIGHT * moved

    best = value(core)
    for _ in range(ROUNDS):
        before = best
        for cost, factor in product(range(len(LEAST)), FACTORS):
            tried = _move(core, cost, factor)
            if (now := value(tried)) < best:
                best, core = now, tried
        if best > 0.999 * before:
            break
    return best, core


def _costs(core: Core) -> list[float]:
    """All costs, in the order of ``LEAST``."""
    return [*(getattr(core, name) for name in FITTED), *core.finish]


def _move(core: Core, number: int, factor: float) -> Core:
    """The core with one cost multiplied by a factor."""
    costs = _costs(core)
    costs[number] = round(max(costs[number], LEAST[number]) * factor, 4)
    *others, four, two, one = costs
    values: dict[str, Any] = dict(zip(FITTED, others, strict=True))
    return replace(core, finish=(four, two, one), **values)


def _prefers_even(target: Target) -> bool:
    """Whether weights from far away come faster when they are prefetched evenly."""
    shapes = (Shape(7, 512, 512, 3), Shape(7, 512, 2048), Shape(7, 960, 320))
    graph = build_graph(shapes)
    jobs = []
    for task in plan_tasks([graph], target)[0]:
        kernel = choose_kernel(task.step, target, KernelChoice(PLAIN, None, True))
        assert kernel is not None
        tile = (kernel.tile.rows, kernel.tile.columns, kernel.tile.vectors)
        choices = [KernelChoice(PLAIN, tile, True, None, how) for how in (EARLY, EVEN)]
        jobs += [Job(task.key, choice, FAR_NBYTES) for choice in choices]
    measurements = Measurer(Work.of([graph], target), samples=9).run(jobs)
    pairs = [
        (early.ratio, even.ratio)
        for early, even in zip(measurements[::2], measurements[1::2], strict=True)
    ]
    ratios = [even / early for early, even in pairs if np.isfinite((early, even)).all()]
    return bool(ratios) and float(np.median(ratios)) < FASTER


def _prefers_large_pages(target: Target) -> bool:
    """Whether memory in large pages is read faster, in order; kernels, which jump, gain more, so
    that this switches them on and never off."""
    if not HAS_LARGE_PAGES:
        return False
    kinds: tuple[Allocate, ...] = (aligned_bytes, LargePages())
    small, large = (reading_rate(target, 1, PAGED_NBYTES, kind) for kind in kinds)
    return small / large < FASTER


PAGED_NBYTES = 2**25
"""Memory read to compare sizes of pages: more than buffers of translations cover."""

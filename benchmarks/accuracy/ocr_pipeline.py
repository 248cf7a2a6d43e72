"""Rendered pages read by RapidOCR, with onnxruntime's sessions and with quantglow's models.

``python -m benchmarks ocr_pipeline [--pages N] [--stages] [--int16] [--output FOLDER]``, in an
environment that has ``rapidocr-onnxruntime==1.4.4``.  Detection, direction classifier and
recognition run one after the other, each at the shapes of the page: heights and widths of pages,
batches and widths of lines.  Calibration data are the inputs of the float pipeline's networks on
other pages.

Readers of the same pages are compared in pairs, see ``paired_comparison``.  With ``--stages`` all
of them are quantglow's: float, int8, and one network at a time in int8; nothing is timed.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import rapidocr_onnxruntime
from numpy.typing import NDArray

import quantglow as qg
from benchmarks.accuracy.paired_comparison import Comparison, Reading, comparisons, table
from benchmarks.networks.samples import load

Image = NDArray[np.uint8]
Options = Mapping[str, Any]
"""Keyword arguments of ``quantize_and_compile``."""

MARGIN = 24
SCALES = (1.0, 1.3, 1.7)
MOST_COLUMNS, MOST_ROWS = 2, 7
STAGES = {
    "det": ("text_det", "infer"),
    "cls": ("text_cls", "infer"),
    "rec": ("text_rec", "session"),
}
"""Network -> the attributes of RapidOCR that lead to its session."""

READERS = {"float": (), "int8": tuple(STAGES)} | {f"{stage} int8": (stage,) for stage in STAGES}
"""Reader -> its networks that are in int8."""

SHOWN_EVERY = 25
"""Pages between two tables of ``--stages``."""


@dataclass(frozen=True)
class Page:
    """A sheet [H, W, 3] and the lines on it, in reading order."""

    image: Image
    lines: tuple[str, ...]


def page(rng: np.random.Generator, role: str) -> Page:
    """Lines of ``ocr_lines.npz`` in one or two columns; ``role`` is "" or "calibration_"."""
    data = load("ocr_lines.npz")
    columns = int(rng.integers(1, MOST_COLUMNS + 1))
    rows, scale = int(rng.integers(2, MOST_ROWS + 1)), float(rng.choice(SCALES))
    pitch, step = int(48 * scale) + 16, int(320 * scale) + MARGIN
    shape = (rows * pitch + 2 * MARGIN, columns * step + MARGIN, 3)
    sheet = np.full(shape, int(rng.integers(190, 256)), np.uint8)
    texts = []
    for row in range(rows):
        for column in range(columns):
            chosen = int(rng.integers(len(data[f"{role}widths"])))
            line = data[f"{role}images"][chosen, :, : data[f"{role}widths"][chosen]]
            size = (int(line.shape[1] * scale), int(48 * scale))
            resized = cv2.resize(line, size, interpolation=cv2.INTER_CUBIC)[..., None]
            top, left = MARGIN + row * pitch, MARGIN + column * step
            sheet[top : top + size[1], left : left + size[0]] = resized
            texts.append(str(data["texts"][chosen]) if not role else "")
    return Page(sheet, tuple(texts))


def pages(count: int, seed: int, role: str = "") -> list[Page]:
    rng = np.random.default_rng(seed)
    return [page(rng, role) for _ in range(count)]


@dataclass
class Session:
    """Replaces an ``InferenceSession``; ``fed`` keeps its inputs if ``keep``."""

    runner: Any
    session: Any
    keep: bool = False
    fed: list[NDArray[np.float32]] = field(default_factory=list)
    shapes: set[tuple[int, ...]] = field(default_factory=set)

    def run(self, names: list[str], feeds: dict[str, NDArray[np.float32]]) -> Any:
        for array in feeds.values():
            self.shapes.add(array.shape)
            if self.keep:
                self.fed.append(array.copy())
        return self.runner.run(names, feeds)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session, name)


def engine_with(
    replaced: Callable[[str, Any], Any], keep: bool = False
) -> tuple[Any, dict[str, Session]]:
    """RapidOCR with other runners of its three networks, and the sessions in their places."""
    engine = rapidocr_onnxruntime.RapidOCR()
    sessions = {}
    for stage, (part, attribute) in STAGES.items():
        owner = getattr(getattr(engine, part), attribute)
        sessions[stage] = Session(replaced(stage, owner.session), owner.session, keep)
        owner.session = sessions[stage]
    return engine, sessions


def model_of(stage: str) -> Path:
    """The ONNX file of a stage, from the wheel."""
    folder = Path(rapidocr_onnxruntime.__file__).parent / "models"
    (actual,) = folder.glob(f"*_{stage}_infer.onnx")
    return actual


def calibration(count: int) -> dict[str, list[NDArray[np.float32]]]:
    """Inputs of each network in the float pipeline, on pages that are not read afterwards."""
    engine, sessions = engine_with(lambda stage, session: session, keep=True)
    for sheet in pages(count, seed=1, role="calibration_"):
        engine(sheet.image)
    return {stage: session.fed for stage, session in sessions.items()}


def int8_models(count: int, options: Options) -> dict[str, Any]:
    """The three networks in int8, all dimensions free."""
    return {
        stage: qg.quantize_and_compile(
            model_of(stage), samples, verify=False, progress=False, **options
        )
        for stage, samples in calibration(count).items()
    }


def floats() -> dict[str, Any]:
    """The three networks in float, all dimensions free."""
    return {stage: qg.compile(str(model_of(stage))) for stage in STAGES}


def read_by(engine: Any, sheet: Page) -> list[str]:
    """The text of each line found."""
    return [str(line[1]) for line in engine(sheet.image)[0] or []]


@dataclass(frozen=True)
class Score:
    """Readings and times of one set of sessions."""

    runtime: str
    readings: list[Reading]
    seconds: float
    seconds_again: float
    shapes: dict[str, int]


def score(name: str, replaced: Callable[[str, Any], Any], sheets: list[Page]) -> Score:
    """Read all pages twice; only the first pass compiles new shapes."""
    engine, sessions = engine_with(replaced)
    spent = []
    for _ in range(2):
        start = time.perf_counter()
        actual = [read_by(engine, sheet) for sheet in sheets]
        spent.append(time.perf_counter() - start)
    readings = [Reading.of(sheet.lines, read) for sheet, read in zip(sheets, actual, strict=True)]
    shapes = {stage: len(session.shapes) for stage, session in sessions.items()}
    first, again = spent
    return Score(name, readings, first, again, shapes)


def scores(sheets: list[Page], calibration_pages: int, options: Options) -> Iterator[Score]:
    """quantglow in float and in int8, then onnxruntime in float."""
    ours = floats()
    yield score("quantglow float", lambda stage, session: ours[stage], sheets)
    integers = int8_models(calibration_pages, options)
    yield score("quantglow int8", lambda stage, session: integers[stage], sheets)
    yield score("onnxruntime float", lambda stage, session: session, sheets)


@dataclass
class Cached:
    """A network with a cache of its results: readers share most of the inputs of a page."""

    runner: Any
    known: dict[tuple[Any, bytes], list[NDArray[np.float32]]] = field(default_factory=dict)

    def run(self, names: list[str], feeds: Mapping[str, NDArray[np.float32]]) -> Any:
        (array,) = feeds.values()
        key = array.shape, array.tobytes()
        if key not in self.known:
            self.known[key] = self.runner.run(names, feeds)
        return [result.copy() for result in self.known[key]]


def replacement(networks: Mapping[str, Any], stage: str, session: Any) -> Any:
    """The network that reads in place of a session."""
    return networks[stage]


def by_stages(
    sheets: list[Page], networks: Mapping[str, Mapping[str, Any]]
) -> Iterator[dict[str, Reading]]:
    """Readings of each of ``READERS``, page by page; ``networks``: "float" and "int8" -> stages."""
    kept = {
        (kind, stage): Cached(runner)
        for kind, runners in networks.items()
        for stage, runner in runners.items()
    }
    engines = {}
    for reader, chosen in READERS.items():
        kinds = {stage: "int8" if stage in chosen else "float" for stage in STAGES}
        ours = {stage: kept[kind, stage] for stage, kind in kinds.items()}
        engines[reader], _ = engine_with(partial(replacement, ours))
    for sheet in sheets:
        yield {
            reader: Reading.of(sheet.lines, read_by(engine, sheet))
            for reader, engine in engines.items()
        }
        for network in kept.values():
            network.known.clear()


def compare_stages(
    sheets: list[Page], calibration_pages: int, options: Options
) -> list[Comparison]:
    """Readers with some networks in int8 beside float; prints a table every few pages."""
    networks = {"float": floats(), "int8": int8_models(calibration_pages, options)}
    actual: dict[str, list[Reading]] = defaultdict(list)
    for done, readings in enumerate(by_stages(sheets, networks), 1):
        for reader, reading in readings.items():
            actual[reader].append(reading)
        if done % SHOWN_EVERY == 0 and done < len(sheets):
            print(f"{done} of {len(sheets)} pages\n{table(comparisons(actual))}\n", flush=True)
    return comparisons(actual)


def compare_runtimes(
    sheets: list[Page], calibration_pages: int, options: Options
) -> tuple[list[Score], list[Comparison]]:
    """quantglow and onnxruntime's float, timed; prints the times."""
    collected = []
    for one in scores(sheets, calibration_pages, options):
        collected.append(one)
        print(
            f"{one.runtime:18} first {one.seconds:6.1f} s  again {one.seconds_again:6.1f} s  "
            f"shapes {one.shapes}",
            flush=True,
        )
    return collected, comparisons({one.runtime: one.readings for one in collected})


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--pages", type=int, default=24)
    command.add_argument("--calibration-pages", type=int, default=8)
    command.add_argument("--seed", type=int, default=0, help="draws the pages")
    command.add_argument("--stages", action="store_true", help="also one network at a time in int8")
    command.add_argument("--int16", action="store_true", help='with int16_activations="auto"')
    command.add_argument("--output", type=Path, help="folder for ocr_pipeline.json")


def run(options: argparse.Namespace) -> int:
    """Print the comparison, and write it to a folder."""
    sheets = pages(options.pages, options.seed)
    chosen = {"int16_activations": "auto"} if options.int16 else {}
    timed: list[Score] = []
    if options.stages:
        compared = compare_stages(sheets, options.calibration_pages, chosen)
    else:
        timed, compared = compare_runtimes(sheets, options.calibration_pages, chosen)
    print(table(compared))
    if options.output:
        options.output.mkdir(parents=True, exist_ok=True)
        kept = {
            "scores": [asdict(one) for one in timed],
            "comparisons": [asdict(one) | {"accuracy": one.accuracy} for one in compared],
        }
        (options.output / "ocr_pipeline.json").write_text(json.dumps(kept, indent=1) + "\n")
    return 0

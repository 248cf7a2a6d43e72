"""Read rendered pages with RapidOCR: onnxruntime's sessions against ours, float and int8.

``python -m benchmarks.ocr_pipeline [--pages N] [--output FOLDER]``, in an environment that has
``rapidocr-onnxruntime==1.4.4``.  Detection, direction classifier and recognition run one after the
other, each at the shapes that the page asks for: heights and widths of pages, batches and widths
of lines.  Calibration data are what the float pipeline feeds its networks on other pages.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import rapidocr_onnxruntime
from numpy.typing import NDArray

import quantglow as qg
from benchmarks.samples import load

Image = NDArray[np.uint8]
MARGIN = 24
SCALES = (1.0, 1.3, 1.7)
MOST_COLUMNS, MOST_ROWS = 2, 7
STAGES = {
    "det": ("text_det", "infer"),
    "cls": ("text_cls", "infer"),
    "rec": ("text_rec", "session"),
}
"""Where RapidOCR keeps the three networks."""


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
    """Stands in for an ``InferenceSession``; ``fed`` keeps what went in if that is wanted."""

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
    (found,) = folder.glob(f"*_{stage}_infer.onnx")
    return found


def calibration(count: int) -> dict[str, list[NDArray[np.float32]]]:
    """What the float pipeline feeds each network on pages that are not read afterwards."""
    engine, sessions = engine_with(lambda stage, session: session, keep=True)
    for sheet in pages(count, seed=1, role="calibration_"):
        engine(sheet.image)
    return {stage: session.fed for stage, session in sessions.items()}


def int8_models(count: int) -> dict[str, Any]:
    """The three networks in int8, all dimensions free."""
    return {
        stage: qg.quantize_and_compile(model_of(stage), samples, verify=False, progress=False)
        for stage, samples in calibration(count).items()
    }


@dataclass(frozen=True)
class Score:
    """How well one set of sessions read the pages."""

    runtime: str
    characters: int
    wrong: int
    lines: int
    exact: int
    seconds: float
    seconds_again: float
    shapes: dict[str, int]

    @property
    def accuracy(self) -> float:
        """Characters less edit distance, over characters."""
        return 1 - self.wrong / self.characters


def score(name: str, replaced: Callable[[str, Any], Any], sheets: list[Page]) -> Score:
    """Read all pages twice: a new shape costs once."""
    engine, sessions = engine_with(replaced)
    spent = []
    for _ in range(2):
        start = time.perf_counter()
        found = [engine(sheet.image)[0] or [] for sheet in sheets]
        spent.append(time.perf_counter() - start)
    characters = wrong = exact = 0
    for sheet, lines in zip(sheets, found, strict=True):
        read = [str(line[1]) for line in lines]
        expected = "\n".join(sheet.lines)
        characters += len(expected)
        wrong += edit_distance(expected, "\n".join(read))
        exact += sum(line in read for line in sheet.lines)
    count = sum(len(sheet.lines) for sheet in sheets)
    shapes = {stage: len(session.shapes) for stage, session in sessions.items()}
    return Score(name, characters, wrong, count, exact, *spent, shapes)


def edit_distance(a: str, b: str) -> int:
    """Insertions, deletions and replacements between two texts (Wagner and Fischer, 1974)."""
    before = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        now = [i]
        for j, y in enumerate(b, 1):
            now.append(min(before[j] + 1, now[-1] + 1, before[j - 1] + (x != y)))
        before = now
    return before[-1]


def scores(count: int, calibration_pages: int) -> Iterator[Score]:
    """onnxruntime in float, then ours in float and in int8."""
    sheets = pages(count, seed=0)
    yield score("onnxruntime float", lambda stage, session: session, sheets)
    floats = {stage: qg.compile(str(model_of(stage))) for stage in STAGES}
    yield score("quantglow float", lambda stage, session: floats[stage], sheets)
    integers = int8_models(calibration_pages)
    yield score("quantglow int8", lambda stage, session: integers[stage], sheets)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ocr_pipeline", description=__doc__)
    parser.add_argument("--pages", type=int, default=24)
    parser.add_argument("--calibration-pages", type=int, default=8)
    parser.add_argument("--output", type=Path, help="folder for ocr_pipeline.json")
    options = parser.parse_args()
    found = []
    for one in scores(options.pages, options.calibration_pages):
        found.append(asdict(one) | {"accuracy": one.accuracy})
        print(
            f"{one.runtime:18} characters {one.accuracy:7.2%}  lines {one.exact}/{one.lines}  "
            f"first {one.seconds:6.1f} s  again {one.seconds_again:6.1f} s  shapes {one.shapes}",
            flush=True,
        )
    if options.output:
        options.output.mkdir(parents=True, exist_ok=True)
        (options.output / "ocr_pipeline.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

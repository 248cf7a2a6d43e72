"""The fuzzers' command line."""

from __future__ import annotations

import argparse
import faulthandler
import json
import resource
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import onnx
from rich.console import Console
from rich.progress import track

from tests.fuzz import compare, exports, files, isolated, plugged, saved_files, saved_texts
from tests.fuzz.compare import Difference, Setting
from tests.fuzz.shrink import shrunk
from tests.generators.onnx_models import models

CHECKS: Mapping[str, Callable[[models.Case, Setting, int], Difference | None]] = {
    "graphs": lambda case, setting, seed: compare.check(case, setting),
    "exports": exports.check,
    "plugged": plugged.check,
}
"""The fuzzers of drawn graphs."""


def check(what: str, seed: int) -> Difference | None:
    """The difference of a seed's case, None if there is none."""
    if what in CHECKS:
        return CHECKS[what](models.drawn(seed), Setting.of(seed), seed)
    if what == "files":
        return files.check_file(files.damaged(seed))
    if is_text(what, seed):
        return saved_texts.check_text(seed)
    return saved_files.check_saved(saved_files.damaged(seed))


def is_text(what: str, seed: int) -> bool:
    """Whether a seed stands for an altered text: all of ``texts``, half of ``saved``."""
    return what == "texts" or (what == "saved" and seed % 2 == 1)


def work(what: str, start: int, stop: int) -> None:
    """Check seeds and print a line for each; ``isolated`` reads them."""
    resource.setrlimit(resource.RLIMIT_AS, (isolated.MEMORY_NBYTES,) * 2)
    for seed in range(start, stop):
        faulthandler.dump_traceback_later(isolated.patience(), exit=True)
        checked = check(what, seed)
        faulthandler.cancel_dump_traceback_later()
        kind, detail = (checked.kind, checked.detail) if checked else ("", "")
        print("\n" + json.dumps({"seed": seed, "kind": kind, "detail": detail}), flush=True)


def hunt(what: str, seeds: range, minutes: float | None, folder: Path) -> int:
    """Check seeds until they or the minutes end; the number of findings."""
    console, actual, tried, refused = Console(), [], 0, 0
    deadline = time.monotonic() + 60 * minutes if minutes else None
    checked = track(
        isolated.findings(what, seeds),
        f"fuzzing {what}",
        total=len(seeds),
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
    )
    for finding in checked:
        tried += 1
        if finding and finding.kind == compare.REFUSED:
            refused += 1
        elif finding:
            actual.append(finding)
            console.print(f"seed {finding.seed}: {finding.kind}: {finding.detail}", markup=False)
            console.print(f"  {kept(what, finding, folder)}", markup=False)
        if deadline and time.monotonic() > deadline:
            break
    unchecked = f", {refused} {compare.REFUSED}" if refused else ""
    console.print(f"{what}: {tried} tried{unchecked}, {len(actual)} findings")
    return len(actual)


def kept(what: str, finding: isolated.Finding, folder: Path) -> str:
    """Write the case, shrunk if possible, and a text on its difference."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{what}-{finding.seed}.{'qgm' if what == 'saved' else 'onnx'}"
    if is_text(what, finding.seed):
        return saved_texts.kept(finding.seed, folder)
    if what not in CHECKS:
        path.write_bytes((saved_files if what == "saved" else files).damaged(finding.seed))
        return str(path)
    case, setting = models.drawn(finding.seed), Setting.of(finding.seed)
    if finding.kind != "crash":

        def fails(smaller: models.Case) -> bool:
            difference = CHECKS[what](smaller, setting, finding.seed)
            return difference is not None and difference.kind == finding.kind

        case = shrunk(case, fails)
    onnx.save(case.model, path)
    operators = " ".join(node.op_type for node in case.model.graph.node)
    return f"{path}: {operators} ({setting})"


def seed_range(text: str) -> range:
    start, _, stop = text.partition(":")
    return range(int(start), int(stop)) if stop else range(int(start), int(start) + 1)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for what, about in (
        ("graphs", "random graphs: float against onnxruntime, int8 against the interpreter"),
        ("exports", "random graphs: exported models in onnxruntime against the compiled ones"),
        ("plugged", "random graphs in onnxruntime with the plug-in against its CPU provider"),
        ("files", "damaged files: a result or a typed error, nothing else"),
        ("saved", "the same of damaged and altered .qgm files whose hashes are right"),
        ("texts", "the same of .qgm files with altered graphs that inference accepts"),
    ):
        options = commands.add_parser(what, help=about, description=about)
        options.add_argument("--seeds", type=seed_range, default=range(1000), metavar="FROM:TO")
        options.add_argument("--minutes", type=float, help="stop after so many")
        options.add_argument("--folder", type=Path, default=Path("fuzz-findings"))
    worker = commands.add_parser("worker")
    worker.add_argument("what")
    worker.add_argument("start", type=int)
    worker.add_argument("stop", type=int)
    inputs = parser.parse_args()
    if inputs.command == "worker":
        work(inputs.what, inputs.start, inputs.stop)
    else:
        sys.exit(bool(hunt(inputs.command, inputs.seeds, inputs.minutes, inputs.folder)))


if __name__ == "__main__":
    main()

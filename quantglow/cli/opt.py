"""``quantglow opt``: passes by name over the text of a graph or a program.

``GRAPH_PASSES`` and ``NAMED_PROGRAM_PASSES`` have every pass by its name.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from quantglow.api.bisect import Bisection, bisect
from quantglow.api.import_model import import_model
from quantglow.cli.arguments import STEPS, option_values, steps_arguments
from quantglow.cli.files import check_onnx
from quantglow.cli.steps import step_words
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.text import arrays_written_out, parse_graph, print_with_arrays
from quantglow.ir.program.text import parse_program
from quantglow.ir.program.verify import verify_program
from quantglow.quantization.qdq import QDQ_PASSES
from quantglow.support.arguments import integer
from quantglow.support.errors import FileFormatError, OptionError
from quantglow.support.files import cause
from quantglow.transforms.float import FLOAT_PASSES, optimize
from quantglow.transforms.lowering import LOWERING_PASSES, lower
from quantglow.transforms.pass_manager import pass_name, run_in_order
from quantglow.transforms.program.sharing import PROGRAM_PASSES, ProgramPass
from quantglow.transforms.rewrite import Pass, RewritePass, single_passes

Step = TypeVar("Step", bound=Callable[..., Any])

MAX_ELEMENTS = 64
"""Maximum size of an array whose values are printed, by default."""


def _by_name(passes: Iterable[Step]) -> dict[str, Step]:
    """The passes by their names, in their order."""
    return {pass_name(step): step for step in passes}


GRAPH_PASSES: dict[str, Pass] = _by_name(
    [*single_passes((*FLOAT_PASSES, *QDQ_PASSES, *LOWERING_PASSES)), optimize, lower]
)
"""Passes over graphs: those of ``optimize``, of models that come quantized, and of ``lower``."""

NAMED_PROGRAM_PASSES: dict[str, ProgramPass] = _by_name(PROGRAM_PASSES)


def _choose(names: Iterable[str], passes: dict[str, Step], others: Iterable[str]) -> list[Step]:
    """The passes of these names.  Raises ``OptionError``, with a near name; ``others`` are names of
    passes over the other representation.
    """
    return [_pass_named(name, passes, others) for name in names]


def _pass_named(name: str, passes: dict[str, Step], others: Iterable[str]) -> Step:
    if name in passes:
        return passes[name]
    if name in others:
        raise OptionError(
            f"pass {name!r} is over programs or graphs, whichever the text is not. Remedy: "
            "`quantglow opt --list` says over what each pass runs."
        )
    near = get_close_matches(name.replace("_", "-"), passes, 1)
    hint = f", did you mean {near[0]!r}?" if near else "."
    raise OptionError(f"there is no pass {name!r}{hint} `quantglow opt --list` names all")


def summary(step: Callable[..., Any]) -> str:
    """The first sentence of a pass's documentation, the equation of a rule."""
    text = step.doc if isinstance(step, RewritePass) else (step.__doc__ or "")
    return " ".join(text.split("\n\n")[0].split())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "text",
        nargs="?",
        default="-",
        help="text of a graph or a program, or an ONNX model (default: -, which is stdin)",
    )
    parser.add_argument(
        "-p",
        "--pass",
        dest="passes",
        action="append",
        default=[],
        metavar="NAME",
        help="pass to run; several run in the order given",
    )
    parser.add_argument(
        "--bisect",
        action="store_true",
        help="find the pass or kernel from which on results differ from the reference, on the "
        "first sample of --calibration-data",
    )
    parser.add_argument(
        "--calibration-data", metavar="FILE", help=".npz with an array for each input"
    )
    steps_arguments(parser)
    parser.add_argument("--list", action="store_true", help="name every pass, and what it does")
    parser.add_argument(
        "--verify", action="store_true", help="verify types and names at first and after each pass"
    )
    parser.add_argument(
        "--max-elements",
        type=int,
        default=MAX_ELEMENTS,
        metavar="N",
        help="print the values of arrays of up to N elements; larger ones become a mark, with "
        "which the text cannot be read again (default: %(default)s)",
    )


def run(options: argparse.Namespace, console: Console) -> None:
    """Print what passes make of a text.  ``QUANTGLOW_DEBUG=2`` shows why they declined."""
    console.file.write(_text_for(options))


def _text_for(options: argparse.Namespace) -> str:
    """The text that the options ask for."""
    if options.list:
        return _listing()
    return f"{_bisect_passes(options)}\n" if options.bisect else _optimize_text(options)


def _bisect_passes(options: argparse.Namespace) -> Bisection:
    """The finding of ``bisect`` for an ONNX model.  Raises ``OptionError`` without samples."""
    if options.calibration_data is None:
        raise OptionError("bisect: give samples by --calibration-data")
    check_onnx(options.text)
    return bisect(options.text, options.calibration_data, **option_values(options, STEPS))


def _listing() -> str:
    """Every pass with its summary, passes over graphs first."""
    graphs, programs = _table(GRAPH_PASSES), _table(NAMED_PROGRAM_PASSES)
    return f"passes over graphs\n{graphs}\npasses over programs\n{programs}"


def _table(passes: dict[str, Callable[..., Any]]) -> str:
    return "".join(f"  {name:32}{summary(step)}\n" for name, step in passes.items())


def _optimize_text(options: argparse.Namespace) -> str:
    """The text of the graph or program after the passes that ``options`` name."""
    most = integer("max_elements", options.max_elements)
    if Path(options.text).suffix == ".onnx":
        graph = import_model(options.text, **option_values(options, STEPS))
        return _optimize_graph(graph, options.passes, most, options.verify)
    if step_words(options):
        raise OptionError(
            "--before and --after are for ONNX models, and a text is a graph or a program already. "
            "Remedy: omit them, or give the model."
        )
    text = read_text(options.text)
    if text.startswith("program"):
        return _optimize_program(text, options.passes, most)
    return _optimize_graph(parse_graph(text, {}), options.passes, most, options.verify)


def read_text(path: str) -> str:
    """The text of a file, or of stdin.  Raises ``FileFormatError``."""
    if path == "-" and sys.stdin is None:
        raise FileFormatError("there is no stdin to read a text from. Remedy: name a file.")
    try:
        return sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise FileFormatError(
            f"cannot read {path!r}: {cause(error)}. Remedy: a text as `quantglow opt` prints it"
        ) from error


def _optimize_graph(graph: Graph, names: Iterable[str], most: int, verify: bool) -> str:
    """The text of the graph after these passes."""
    passes = _choose(names, GRAPH_PASSES, NAMED_PROGRAM_PASSES)
    if verify:
        graph.verify()
    optimized = run_in_order(graph, passes, Graph.verify, always=verify)
    return print_with_arrays(optimized, most)


def _optimize_program(text: str, names: Iterable[str], most: int) -> str:
    """The text of the program after these passes; reading it verifies it."""
    passes = _choose(names, NAMED_PROGRAM_PASSES, GRAPH_PASSES)
    program = run_in_order(parse_program(text, {}), passes, verify_program, always=True)
    return program.text(arrays_written_out(most))

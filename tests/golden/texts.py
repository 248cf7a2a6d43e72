"""Golden texts: the IR before a pass, the IR after it, and the reasons for which it declined.

A file ``NAME/case.txt`` belongs to the pass ``NAME``::

    === before
    graph ''
    …
    === after
    graph ''
    …
    === declined
    'bn': 'conv' has other readers

``after`` is ``unchanged`` where the pass changes nothing.  The part before is written by hand, or
printed by ``quantglow opt``; ``pytest tests/golden --update-golden`` writes the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantglow.cli.opt import GRAPH_PASSES, NAMED_PROGRAM_PASSES
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.text import arrays_written_out, parse_graph, print_with_arrays
from quantglow.ir.program.program import Program
from quantglow.ir.program.text import parse_program
from quantglow.ir.program.verify import verify_program
from quantglow.transforms.pass_manager import PassRecord, recording, run_in_order

FOLDER = Path(__file__).parent
FILES = sorted(FOLDER.glob("*/*.txt"))
PASSES: dict[str, Callable[[Any], Any]] = {**GRAPH_PASSES, **NAMED_PROGRAM_PASSES}
MAX_ELEMENTS = 128
UNCHANGED = "unchanged\n"
BEFORE, AFTER, DECLINED = "=== before\n", "=== after\n", "=== declined\n"


@dataclass(frozen=True)
class Run:
    """A pass that ran over the first part of a file; ``reasons`` by names of values."""

    before: Graph | Program
    after: Graph | Program
    reasons: dict[str, str]

    @property
    def changed(self) -> bool:
        return self.after is not self.before

    def text(self) -> str:
        """The file."""
        after = printed(self.after) if self.changed else UNCHANGED
        reasons = [f"{name!r}: {reason}\n" for name, reason in self.reasons.items()]
        declined = [DECLINED, *reasons] if reasons else []
        return "".join([BEFORE, printed(self.before), AFTER, after, *declined])


def parsed(text: str) -> Graph | Program:
    return parse_program(text, {}) if text.startswith("program") else parse_graph(text, {})


def printed(ir: Graph | Program) -> str:
    if isinstance(ir, Graph):
        return print_with_arrays(ir, MAX_ELEMENTS)
    return ir.text(arrays_written_out(MAX_ELEMENTS))


def verify(ir: Graph | Program) -> None:
    if isinstance(ir, Graph):
        ir.verify()
    else:
        verify_program(ir)


def run(path: Path) -> Run:
    """The pass that a file belongs to, run over the file's first part."""
    before = parsed(path.read_text(encoding="utf-8").partition(AFTER)[0].removeprefix(BEFORE))
    name, record = path.parent.name, PassRecord()
    with recording(record):
        after = run_in_order(before, [PASSES[name]], verify, always=True)
    reasons = {value: reason for (step, value), reason in record.reasons.items() if step == name}
    return Run(before, after, reasons)

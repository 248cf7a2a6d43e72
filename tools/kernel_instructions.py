"""Instructions of each kernel of a network on an emulated processor, the most expensive first.

::

    python -m tools.integer_hashes write FOLDER mobilenet_v2
    python -m tools.kernel_instructions FOLDER mobilenet_v2 --place dotprod

prints for each kernel: instructions of one inference, its share, instructions for each
multiply-accumulate, calls, and what it computes.  ``make cross-setup`` installs the emulator.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from quantglow.codegen.llvm.emitted import EmittedProgram
from quantglow.codegen.llvm.kernel import KernelCall
from quantglow.export.bundle.exporter import emit
from quantglow.export.bundle.program_object import kernel_functions
from quantglow.runtime.saved import saving
from quantglow.support.arrays import Array
from tools.integer_hashes import feeds_of
from tools.other_processors import NAME, QEMU, level_of, linked

FUNCTION = f"{NAME}_"


@dataclass(frozen=True)
class Counted:
    """A kernel: instructions of all its calls, and the calls."""

    instructions: int
    calls: tuple[KernelCall, ...]

    @property
    def work(self) -> float:
        """Multiply-accumulates, or what else the kernels count."""
        return sum(call.work for call in self.calls)


def kernels_at(place: str, folder: Path, name: str) -> list[Counted]:
    """The kernels of a saved network, most instructions first."""
    graph, feeds = saving.load(folder / f"{name}.qgm").graph, feeds_of(folder, name)[0]
    return counts(emit(graph, level_of(place)), place, [feeds[x.name] for x in graph.inputs])


def counts(program: EmittedProgram, place: str, sample: list[Array]) -> list[Counted]:
    """The kernels of a program, most instructions first."""
    functions, calls = kernel_functions(NAME, program), defaultdict[str, list[KernelCall]](list)
    for row in program.rows:
        calls[functions.get(row.kernel.ir, "")].append(row.kernel)
    with tempfile.TemporaryDirectory() as folder:
        built = linked(program, Path(folder))
        once, twice = (built.by_function(place, sample, runs) for runs in (1, 2))
    actual = [
        Counted(count - once[name], tuple(calls[name]))
        for name, count in twice.items()
        if name.startswith(FUNCTION)
    ]
    return sorted(actual, key=lambda kernel: -kernel.instructions)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.kernel_instructions")
    parser.add_argument("folder", type=Path, help="of `python -m tools.integer_hashes write`")
    parser.add_argument("name", help="of a network")
    parser.add_argument("--place", choices=QEMU, default="dotprod")
    options = parser.parse_args()
    kernels = kernels_at(options.place, options.folder, options.name)
    total = sum(kernel.instructions for kernel in kernels)
    print(f"{total:12,} instructions")
    for kernel in kernels:
        each = kernel.instructions / kernel.work if kernel.work else 0.0
        label = f"{kernel.calls[0].label} {kernel.calls[0].facts or ''}" if kernel.calls else "run"
        share = kernel.instructions / total
        print(f"{kernel.instructions:12,} {share:6.1%} {each:7.3f} {len(kernel.calls):3} {label}")


if __name__ == "__main__":
    main()

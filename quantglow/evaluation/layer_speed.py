"""Layers that int8 makes slower, measured on this machine.

A layer in int8 can be slower if it is small or its neighbors are float: conversions cost more than
the integers save.  Layers that take longer in int8 are tried in float; the time of the whole
program decides, conversions included.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from quantglow.codegen.llvm.call_profile import CallTime
from quantglow.support.arrays import Array
from quantglow.support.processes.interrupts import NEVER, Deadline
from quantglow.transforms.partition import Executable

if TYPE_CHECKING:
    from quantglow.quantization.quantizer import NodeReport

LEAST_GAIN = 0.02
"""Minimum share of the program's time that a layer in float must save, to be more than noise."""
LEAST_LOSS = 0.005
"""Minimum share of the time of all layers that a layer must lose in int8 to be tried in float."""
MOST_TRIALS = 16
"""Maximum number of layers that are tried alone, the ones with the largest loss first."""
ROUNDS = 15
TURN_SECONDS = 0.005
"""Duration of a turn in seconds; at least one run."""


@dataclass(frozen=True)
class LayerSpeed:
    """The kernels of one layer in the float and in the int8 program; ``precision`` is the choice.

    Conversions at the border of a layer count for the layer in their name.
    """

    name: str
    op: str
    precision: str
    float_ms: float
    int8_ms: float

    @property
    def ratio(self) -> float:
        """Float over int8: above 1, int8 is faster."""
        return self.float_ms / self.int8_ms if self.int8_ms else float("inf")

    @property
    def milliseconds(self) -> float:
        """The time in the precision that was chosen."""
        return self.float_ms if self.precision == "float" else self.int8_ms

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> LayerSpeed:
        """The object from the result of ``asdict``."""
        name, op, precision = (str(data[key]) for key in ("name", "op", "precision"))
        return LayerSpeed(name, op, precision, float(data["float_ms"]), float(data["int8_ms"]))


def layer_milliseconds(calls: Iterable[CallTime], layers: Iterable[str]) -> dict[str, float]:
    """The time of each layer's kernels; helpers are named ``layer:what``."""
    milliseconds = dict.fromkeys(layers, 0.0)
    for call in calls:
        name = call.name
        while name not in milliseconds and ":" in name:
            name = name.rpartition(":")[0]
        if name in milliseconds:
            milliseconds[name] += 1e3 * call.seconds
    return milliseconds


def layer_speeds(
    layers: Sequence[NodeReport], floats: Iterable[CallTime], integers: Iterable[CallTime]
) -> tuple[LayerSpeed, ...]:
    """Times of each layer's kernels in the two programs."""
    names = [layer.name for layer in layers]
    exact, fast = (layer_milliseconds(calls, names) for calls in (floats, integers))
    return tuple(LayerSpeed(n.name, n.op, n.precision, exact[n.name], fast[n.name]) for n in layers)


def slower(speeds: Sequence[LayerSpeed]) -> list[str]:
    """Layers whose int8 kernels take significantly longer, the largest loss first."""
    least = LEAST_LOSS * sum(s.int8_ms for s in speeds)
    losing = [s for s in speeds if s.int8_ms - s.float_ms > least]
    return [s.name for s in sorted(losing, key=lambda s: s.float_ms - s.int8_ms)]


def float_cost(name: str, speeds: Sequence[LayerSpeed]) -> float | None:
    """The time that a layer takes longer in float, as a share of the time of all layers; None if it
    was not measured.
    """
    whole = sum(speed.milliseconds for speed in speeds)
    costs = (s.float_ms - s.int8_ms for s in speeds if s.name == name)
    return next((cost / whole for cost in costs), None) if whole else None


def with_float(speeds: Iterable[LayerSpeed], names: Sequence[str]) -> tuple[LayerSpeed, ...]:
    """The same figures, with some layers in float."""
    return tuple(replace(s, precision="float") if s.name in names else s for s in speeds)


def time_ratio(one: Executable, other: Executable, feeds: Mapping[str, Array]) -> float:
    """The time of one program over that of another: the median of alternating turns."""
    runs = max(1, int(TURN_SECONDS / max(min(_turn(one, feeds, 1) for _ in range(3)), 1e-7)))
    ratios = []
    for _ in range(ROUNDS):
        first = _turn(one, feeds, runs)
        ratios.append(first / max(_turn(other, feeds, runs), 1e-9))
    return statistics.median(ratios)


def _turn(executable: Executable, feeds: Mapping[str, Array], runs: int) -> float:
    start = time.perf_counter()
    for _ in range(runs):
        executable.run(feeds)
    return time.perf_counter() - start


@dataclass
class SpeedSearch:
    """Search for layers that are better kept in float.

    ``build`` makes the program with some layers in float; ``ratio`` is the time of its first
    program over that of the second.
    """

    build: Callable[[Sequence[str]], Executable]
    ratio: Callable[[Executable, Executable], float]
    float_layers: list[str] = field(default_factory=list)
    deadline: Deadline = NEVER

    def run(self, slower: Sequence[str], layers: Sequence[str]) -> list[str]:
        """The layers to keep in float: all, those ``slower`` in int8 (worst first), or some."""
        best = self.build(())
        for group in (list(slower), list(layers)):
            best = self.tried(group, best)
        if not self.float_layers:
            for name in slower[:MOST_TRIALS]:
                best = self.tried([*self.float_layers, name], best)
        return self.float_layers

    def tried(self, group: list[str], best: Executable) -> Executable:
        """The program with ``group`` in float if it is faster than the best so far, else that."""
        if not group or group == self.float_layers or self.deadline.ends("measuring speed"):
            return best
        candidate = self.build(group)
        # Twice, so that a disturbance of the machine counts less.
        if any(self.ratio(candidate, best) > 1 - LEAST_GAIN for _ in range(2)):
            return best
        self.float_layers = group
        return candidate

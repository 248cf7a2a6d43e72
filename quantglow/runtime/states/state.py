"""States: caches of a decoder that stay in memory and grow in place from call to call."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from quantglow.interpreter import check_names, check_types
from quantglow.ir.graph.family import Case, elements, may_decide
from quantglow.ir.graph.signature import Port, Signature, declared_only, entering, leaving
from quantglow.runtime.programs.feeds import TensorInfo, check_feeds, choose_outputs, feeds_by_name
from quantglow.runtime.states.caches import Caches
from quantglow.runtime.states.state_programs import StatePrograms
from quantglow.support.arguments import file_path, integer
from quantglow.support.arrays import Array
from quantglow.support.classes import Concise, OfOneProcess
from quantglow.support.files import writing
from quantglow.support.processes.threads import renew_after_fork


class RunnableModel(Protocol):
    """A model as far as a state needs it."""

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Array]:
        """All outputs."""


@dataclass(eq=False, repr=False)
class State(OfOneProcess, Concise):
    """The caches of one or several sequences, between calls of a model.

    A call that fails or is interrupted leaves the state as it was.  One call at a time uses a
    state; others wait.
    """

    model: RunnableModel
    programs: StatePrograms
    caches: Caches
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        renew_after_fork(self)

    def forget_threads(self) -> None:
        """Forget, in a forked child, a call of a thread of the parent; it added no rows yet."""
        self._lock = threading.Lock()

    @property
    def length(self) -> int:
        """Rows in use."""
        return self.caches.length

    @property
    def capacity(self) -> int:
        """Rows that have memory."""
        return self.caches.capacity

    @property
    def batch(self) -> int:
        """Number of sequences."""
        return self.caches.batch

    @property
    def arrays(self) -> dict[str, Array]:
        """The rows in use by input: views, to which calls add rows."""
        return self.caches.first(self.length)

    # -- calls

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Array]:
        """The named outputs (None or no name: all but the caches) for ``feeds`` without the caches.

        Outputs and feeds are given as for ``CompiledModel.run``.  Raises ``InputError`` for feeds
        that do not fit, ``StateFullError`` where no more rows may be added.
        """
        ends = self._ends
        names = [port.name for port in ends.outputs]
        chosen = choose_outputs(output_names, names)
        arrays = entering(ends.inputs, check_feeds(feeds, lambda: map(TensorInfo.of, ends.inputs)))
        check_names([port.name for port in ends.inputs], arrays)
        check_types(ends, arrays)
        with self._lock:
            results = self._called(arrays)
        outputs = leaving(ends.outputs, [results[name] for name in names])
        by_name = dict(zip(names, outputs, strict=True))
        return [by_name[name] for name in chosen]

    def __call__(self, *arrays: Any, **named: Any) -> Array | list[Array]:
        """Outputs for arrays in the order of the inputs that are no caches, or by name; a single
        output is not in a list.
        """
        names = [port.name for port in self._ends.inputs]
        outputs = self.run(None, feeds_by_name(names, arrays, named))
        return outputs[0] if len(outputs) == 1 else outputs

    def _called(self, arrays: dict[str, Array]) -> dict[str, Array]:
        """All outputs by name, those computed in place included."""
        programs, caches, case = self.programs, self.caches, self._case(arrays)
        rows = programs.rows(case)
        if rows is None:
            return self._copy(arrays)
        caches.reserve(rows)
        executable = programs.at(case, caches.capacity)
        if executable is None:
            return self._copy(arrays)
        states = {pair.output: caches.arrays[pair.input] for pair in programs.pairs}
        outputs = executable.new_outputs_but(states)
        executable.run({**arrays, **caches.arrays}, outputs, caches.addresses)
        caches.length = rows
        return dict(zip(executable.output_names, outputs, strict=True))

    def _case(self, arrays: dict[str, Array]) -> Case:
        caches, deciding = self.caches, self.programs.free.deciding
        shapes = caches.shapes(caches.length)
        few = {n: arrays[n] for n in deciding if n in arrays and may_decide(arrays[n])}
        values = {name: elements(array) for name, array in few.items()}
        return Case.of({**shapes, **{name: array.shape for name, array in arrays.items()}}, values)

    def _copy(self, arrays: dict[str, Array]) -> dict[str, Array]:
        """The outputs of a call of the model itself, whose caches are copied to the state."""
        signature, pairs = self.programs.free.signature, self.programs.pairs
        feeds = declared_only(signature.inputs, {**arrays, **self.arrays})
        outputs = self.model.run(None, feeds)
        results = {p.name: a for p, a in zip(signature.outputs, outputs, strict=True)}
        rows = results[pairs[0].output].shape[pairs[0].axis]
        self.caches.reserve(rows)
        self.caches.fill({pair.input: results[pair.output] for pair in pairs}, rows)
        return results

    @property
    def _ends(self) -> Signature:
        """Inputs and outputs that are no caches."""
        signature, pairs = self.programs.free.signature, self.programs.pairs
        return Signature(
            _without(signature.inputs, {pair.input for pair in pairs}),
            _without(signature.outputs, {pair.output for pair in pairs}),
        )

    # -- contents

    def reset(self) -> None:
        """Forget all rows; their memory stays."""
        self.truncate(0)

    def truncate(self, length: int) -> None:
        """Forget all rows but the first ones: calls go on behind these.  Raises ``OptionError``."""
        with self._lock:
            self.caches.length = integer("length", length, 0, self.length)

    def copy(self) -> State:
        """A state with the same rows, which goes its own way."""
        with self._lock:
            caches = replace(self.caches)
            caches.fill(self.arrays, self.length)
            return State(self.model, self.programs, caches)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the rows in use to an ``.npz`` file."""
        with self._lock, writing(file_path("path", path)) as temporary:
            self.caches.write(Path(temporary))

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Take the rows that ``save`` wrote, in place of those there are.

        Raises ``FileFormatError`` for what is no such file, or of another model or batch, and
        ``StateFullError``.
        """
        with self._lock:
            self.caches.read(file_path("path", path))


def _without(ports: Sequence[Port], names: set[str]) -> tuple[Port, ...]:
    return tuple(port for port in ports if port.name not in names)

"""Tails of which onnxruntime computes only the beginning, which decides shapes.

The rest is compiled as a model of its own, once its shapes are known; so is the body of a Loop at
the beginning.  A tail has the methods of a ``Session``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from quantglow.ort.fallback import FallbackNode
from quantglow.ort.session import Session, open_session
from quantglow.runtime.hybrid.loop import AnyModel, CompiledLoop, export_part, model_bytes
from quantglow.runtime.programs.feeds import TensorInfo
from quantglow.runtime.saved import saving
from quantglow.runtime.shapes.specializations import ServedShapes
from quantglow.support.classes import Concise, cached_property


class Tail(Protocol):
    """The part of a model behind the compiled one."""

    @property
    def input_names(self) -> list[str]:
        """Names of the inputs."""

    @property
    def inputs(self) -> list[Any]:
        """Name, type and shape of each input."""

    @property
    def outputs(self) -> list[Any]:
        """The same of each output."""

    def run(self, feeds: Mapping[str, Any], names: list[str] | None = None) -> list[Any]:
        """The named outputs (None: all)."""


@dataclass(frozen=True, eq=False, repr=False)
class StagedTail(Concise):
    """A session or a compiled loop, and a compiled model that reads its results; None where nothing
    does.

    ``whole``: the ONNX model of both, which runs in onnxruntime where an array between them has no
    elements, as if nothing was detected.  ``nodes``: the operators of the first, ``late``: values
    that nothing but the tail computes.  ``is_int8``: the rest is quantized, so a file has it;
    ``why`` it is not, if quantization was asked for.  ``rounded``: weights that only int8 parts
    read; ``is_restored``: ``whole`` has them as a file gives them.
    """

    first: Session | CompiledLoop
    suffix: AnyModel | None
    whole: bytes
    nodes: tuple[FallbackNode, ...]
    num_threads: int
    late: frozenset[str] = frozenset()
    is_int8: bool = False
    why: str = ""
    rounded: frozenset[str] = frozenset()
    is_restored: bool = False

    def on_threads(self, num_threads: int) -> StagedTail:
        """The same for another number of threads."""
        first = self.first.on_threads(num_threads)
        suffix = None if self.suffix is None else self.suffix.with_num_threads(num_threads)
        return replace(self, first=first, suffix=suffix, num_threads=num_threads)

    @cached_property
    def first_names(self) -> list[str]:
        """Names of what the session gives."""
        return [info.name for info in self.first.outputs]

    @cached_property
    def input_names(self) -> list[str]:
        """Names of the inputs."""
        return [info.name for info in self.inputs]

    @cached_property
    def inputs(self) -> list[Any]:
        """Name, type and shape of each input."""
        others = [info for info in self._suffix_inputs if info.name not in self.first_names]
        infos = [*map(TensorInfo.of_node, self.first.inputs), *others]
        return list({info.name: info for info in infos}.values())

    @property
    def _suffix_inputs(self) -> list[TensorInfo]:
        return [] if self.suffix is None else self.suffix.get_inputs()

    @cached_property
    def outputs(self) -> list[Any]:
        """The same of each output."""
        suffix = [] if self.suffix is None else self.suffix.get_outputs()
        return [*map(TensorInfo.of_node, self.first.outputs), *suffix]

    def run(self, feeds: Mapping[str, Any], names: list[str] | None = None) -> list[Any]:
        """The named outputs (None: all); the rest runs if it is asked for one of its own."""
        output_names = [info.name for info in self.outputs] if names is None else names
        reads = {name: feeds[name] for name in self.first.input_names}
        values = {**feeds, **dict(zip(self.first_names, self.first.run(reads), strict=True))}
        deferred = [name for name in output_names if name not in values]
        if deferred:
            values |= dict(zip(deferred, self._run_suffix(values, deferred), strict=True))
        return [values[name] for name in output_names]

    def _run_suffix(self, values: Mapping[str, Any], names: list[str]) -> list[Any]:
        reads = {info.name: values[info.name] for info in self._suffix_inputs}
        if self.suffix is not None and all(map(np.size, reads.values())):
            return self.suffix.run(names, reads)
        return self._session.run({n: values[n] for n in self._session.input_names}, names)

    @cached_property
    def _session(self) -> Session:
        return open_session(self.restored, self.num_threads)

    @property
    def restored(self) -> bytes:
        """The whole tail as it is after it was saved and loaded."""
        if self.is_restored or not self.has_int8:
            return self.whole
        # Only here: a process without tails needs no onnx.
        from quantglow.runtime.saved.tail_weights import whole_tail

        return whole_tail(self.in_file(saving.SavedTail(self.whole, (), ())))

    def in_file(self, tail: saving.SavedTail) -> saving.SavedTail:
        """A tail with all that its file has of this one."""
        suffix, body = self.suffix_file(), self.body_file()
        complete = replace(tail, late=tuple(sorted(self.late)), suffix=suffix, body=body)
        if not self.has_int8:
            return complete
        from quantglow.runtime.saved.tail_weights import light_tail

        return light_tail(complete, self.rounded)

    @property
    def loop(self) -> CompiledLoop | None:
        """The loop whose body is compiled."""
        return self.first if isinstance(self.first, CompiledLoop) else None

    @property
    def has_int8(self) -> bool:
        """Whether any of it is quantized."""
        return self.is_int8 or (self.loop is not None and self.loop.is_int8)

    def because(self, why: str) -> StagedTail:
        """The tail in float, and why it is."""
        loop = self.loop
        first = self.first if loop is None else replace(loop, not_int8=why)
        return replace(self, first=first, why="" if self.suffix is None else why)

    @property
    def fallback(self) -> tuple[FallbackNode, ...]:
        """The operators that onnxruntime runs, as far as they are known."""
        return (*self.own_fallback, *self.later)

    @property
    def own_fallback(self) -> tuple[FallbackNode, ...]:
        """The operators of the first part that onnxruntime runs."""
        if self.loop is None:
            return self.nodes
        reasons = self.loop.reasons
        return tuple(replace(node, reason=why) for node in self.nodes for why in reasons)

    @property
    def later(self) -> tuple[FallbackNode, ...]:
        """Operators of the rest that onnxruntime runs."""
        return () if self.suffix is None else tuple(getattr(self.suffix.report, "fallback", ()))

    @property
    def notes(self) -> list[str]:
        """Sentences about what is compiled, for a report."""
        names = ", ".join(node.name for node in self.nodes if node.name in self.late)
        notes = []
        if self.loop is not None and not self.loop.is_left:
            kind = _tail_kind(self.loop.is_int8, self.loop.not_int8)
            notes.append(f"the body of the loop {names} is compiled as a model of its own, {kind}")
        if self.suffix is not None:
            kind = _tail_kind(self.is_int8, self.why)
            notes.append(f"the part behind {names} is compiled as a model of its own, {kind}")
        return notes

    def suffix_file(self) -> bytes:
        """The bytes of a ``.qgm`` file of the rest, if a file needs it: else none."""
        return model_bytes(self.suffix) if self.is_int8 and self.suffix is not None else b""

    def body_file(self) -> bytes:
        """The same of the body of the loop."""
        return b"" if self.loop is None or self.loop.int8 is None else model_bytes(self.loop.int8)

    @property
    def served(self) -> tuple[ServedShapes, ...]:
        """The programs of the loop's body, and of the rest."""
        body = () if self.loop is None else self.loop.bodies.served
        return (*body, *(() if self.suffix is None else self.suffix.specialisations.served()))


def _tail_kind(is_int8: bool, why: str) -> str:
    """The numbers of a part; ``why`` it is not int8, if that was asked for."""
    kind = "in int8, calibrated on what the samples lead to" if is_int8 else "in float"
    return f"{kind}: {why}" if why else kind


def join_model(
    head: bytes, tail: bytes, staged: StagedTail | None, outputs: Sequence[str]
) -> bytes:
    """The model of a head and what is behind it: ``tail`` as the source has it, but for the parts
    of it that are int8.  Raises ``ModelError``."""
    # Imported here because a process that runs a saved model does not need onnx.
    from quantglow.export.onnx.joining import LoopBody, join

    parts, body = [head], None
    if staged is not None and staged.is_int8 and staged.suffix is not None:
        parts.append(export_part(staged.suffix, "the part behind operators that decide shapes"))
    loop = None if staged is None else staged.loop
    if loop is not None and loop.int8 is not None:
        body = LoopBody(loop.names, export_part(loop.int8, "the body of a loop"))
    return join(tail if staged is None else staged.whole, parts, outputs, body)

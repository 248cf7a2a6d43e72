"""Models of fused nodes: what answers their calls at each combination of input shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from quantglow.api.compile import compile_source
from quantglow.api.models.other_ways import WholeExecutable
from quantglow.ep.interface import IN_MACHINE_CODE, IN_ONNXRUNTIME, IN_PYTHON
from quantglow.ep.options import ProviderOptions
from quantglow.ep.reports import Part, new_part
from quantglow.importer.onnx import Source
from quantglow.ir.graph.signature import entering
from quantglow.ort.session import guard_kernels
from quantglow.runtime.compiled import CompiledModel
from quantglow.runtime.native.executable import LlvmExecutable
from quantglow.runtime.native.native_call import NativeCall, NativeContext
from quantglow.runtime.native.sequences import BatchedExecutable
from quantglow.runtime.shapes.free_shapes import FreeShapes
from quantglow.runtime.shapes.specializations import ModelPrograms, Served
from quantglow.support.arrays import Array
from quantglow.support.errors import InputError
from quantglow.support.processes.threads import ForkSafeLock

NOTHING_COMPILED = "quantglow compiles nothing of the model."


@dataclass(frozen=True)
class Answer:
    """The answer to calls at some input shapes.

    way      one of ``interface``
    call     the machine code
    refusal  why quantglow refuses these shapes
    is_due   an int64 that is not 0 once another answer may take the place of this one
    calls    number of calls after which that may be, too; 0: never
    """

    way: int
    call: NativeCall | None = None
    refusal: str = ""
    is_due: Array | None = None
    calls: int = 0


@dataclass(frozen=True, eq=False)
class PluggedModel:
    """A model that quantglow compiled for a fused node.

    compiled     None where onnxruntime has to run all of it
    num_threads  of a call
    part         its counts of calls
    programs     the numbers of its programs
    saved        what onnxruntime stores of it
    flags        the words of answers that another one may follow, by address
    lock         held while a session of onnxruntime's own kernels is made
    """

    source: Source
    compiled: CompiledModel | None
    num_threads: int
    part: Part
    programs: list[int] = field(default_factory=list)
    saved: list[bytes] = field(default_factory=list)
    lock: ForkSafeLock = field(default_factory=ForkSafeLock)
    flags: dict[int, Array] = field(default_factory=dict)

    @staticmethod
    def of(source: Source, options: ProviderOptions) -> PluggedModel:
        """The model with some options.  Raises ``QuantglowError``."""
        compiler = options.compiler()
        model = compile_source(source, None, compiler)
        # Without the session of a FallbackModel: the plug-in makes one of its own.
        compiled = model if isinstance(model, CompiledModel) else None
        part = new_part(len(source.proto.graph.node))
        return PluggedModel(source, compiled, compiler.num_threads, part)

    @property
    def answers_meanwhile(self) -> bool:
        """Whether onnxruntime's own kernels answer while programs are compiled."""
        programs = self.compiled and self.compiled.specialisations
        return isinstance(programs, FreeShapes) and programs.compiler.answers is not None

    def answer(self, arrays: Sequence[Array], *, may_wait: bool = False, calls: int = 0) -> Answer:
        """The answer to calls at the shapes of some inputs; ``may_wait``: the program's only.
        ``calls``: the number of those that had the answer before.

        Raises ``BackendError`` for a program that cannot be made.
        """
        if self.compiled is None:
            return Answer(IN_ONNXRUNTIME, refusal=NOTHING_COMPILED)
        programs = self.compiled.specialisations
        ports = programs.signature.inputs
        feeds = dict(zip((port.name for port in ports), arrays, strict=True))
        flag = np.zeros(1, np.int64)
        try:
            served = _served(programs, entering(ports, feeds), may_wait, lambda: flag.fill(1))
        except InputError as error:
            return Answer(IN_ONNXRUNTIME, refusal=str(error))
        if served is None:
            self.flags[flag.ctypes.data] = flag
            return Answer(IN_ONNXRUNTIME, is_due=flag)
        if isinstance(served.build.executable, WholeExecutable):
            return Answer(IN_ONNXRUNTIME)
        call = _native_call(programs, served)
        if call is None:
            return Answer(IN_PYTHON)
        if not isinstance(programs, FreeShapes):
            return Answer(IN_MACHINE_CODE, call)
        if calls and programs.start_own(served, lambda: flag.fill(1)):
            self.flags[flag.ctypes.data] = flag
            return Answer(IN_MACHINE_CODE, call, is_due=flag)
        return Answer(IN_MACHINE_CODE, call, calls=programs.calls_until_own(served))

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """All outputs.  Raises ``InputError`` for what quantglow refuses."""
        assert self.compiled is not None
        names = [port.name for port in self.compiled.specialisations.signature.inputs]
        return self.compiled.run(None, dict(zip(names, arrays, strict=True)))

    def to_bytes(self) -> bytes:
        """The whole model, for onnxruntime's own kernels.  Raises ``ModelError``."""
        return guard_kernels(self.source.serialize())


@dataclass(frozen=True, eq=False)
class PluggedProgram:
    """The machine code for some shapes, and the contexts that the plug-in has, by the addresses of
    their arguments."""

    call: NativeCall
    contexts: dict[int, NativeContext] = field(default_factory=dict)


def _served(
    programs: ModelPrograms,
    feeds: dict[str, Array],
    may_wait: bool,
    done: Callable[[], object],
) -> Served | None:
    """The program of some feeds; None while it is compiled, see ``FreeShapes.begin``."""
    if not isinstance(programs, FreeShapes):
        return programs.at(feeds)
    return programs.compile_at(feeds) if may_wait else programs.begin(feeds, done)


def _native_call(programs: ModelPrograms, served: Served) -> NativeCall | None:
    """The machine code of a program; None where a call has more to do."""
    signature, executable = programs.signature, served.build.executable
    is_plain = not any(port.declared for port in signature.ports)
    if not isinstance(executable, LlvmExecutable | BatchedExecutable) or not is_plain:
        return None
    if served.case is not None and served.case.values:
        return None  # other values of the same shapes have other programs
    return executable.native_call(
        [port.name for port in signature.inputs], [port.name for port in signature.outputs]
    )

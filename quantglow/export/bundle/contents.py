"""Contents of a bundle: the model that every file of it is written from.

A model has the programs that become its objects (one, or one for each level of a processor), inputs
and outputs as C sees them, and the functions that a program has to bring: names without a
definition in its object.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from quantglow.codegen.llvm.emitted import EmittedProgram
from quantglow.codegen.llvm.isa.target import LevelChoice, Target
from quantglow.export.bundle.constants import Placement, per_tensor
from quantglow.export.bundle.linking import Flash, measure_flash
from quantglow.export.bundle.object_tables import ObjectFacts, object_facts
from quantglow.export.bundle.program_object import ProgramObject, levels_object, program_object
from quantglow.ir.program.program import View
from quantglow.ir.types import DType
from quantglow.support.classes import Concise, cached_property
from quantglow.support.errors import BackendError

C_TYPES = {
    DType.F32: "float",
    DType.I8: "int8_t",
    DType.U8: "uint8_t",
    DType.I16: "int16_t",
    DType.I32: "int32_t",
    DType.I64: "int64_t",
    DType.BOOL: "uint8_t",
}

EVERYWHERE = {"memcpy", "memset", "_fltused"}
"""Functions that every program has, and the mark of float code on Windows."""

COMPILERS_OWN = "__"
"""Beginning of the functions of compilers' libraries: libgcc, compiler-rt, the Arm ABI."""

LIBM = {
    f"{name}{kind}"
    for name in (
        *("ceil", "floor", "trunc", "rint", "nearbyint", "round", "roundeven"),
        *("sqrt", "fma", "fmod", "fmin", "fmax", "exp", "exp2", "log", "log2", "pow", "sin", "cos"),
    )
    for kind in ("", "f")
}

SYSTEM = {"getauxval"}


@dataclass(frozen=True, eq=False, repr=False)
class BundleCode(Concise):
    """The program of a model, or those of several levels, best first, and the choice between them
    at run time.
    """

    programs: tuple[EmittedProgram, ...]
    choice: LevelChoice | None = None

    @property
    def base(self) -> EmittedProgram:
        """The program that runs on every processor of the family."""
        return self.programs[-1]

    def build(self, model: BundledModel, placement: Placement) -> ProgramObject:
        """The object, perhaps with parts.  Raises ``BackendError``."""
        if self.choice:
            return levels_object(
                model.name, self.programs, self.choice, placement, model.source_hash
            )
        return program_object(model.name, self.base, placement, model.source_hash)


@dataclass(frozen=True, eq=False, repr=False)
class Contents(Concise):
    """A model as an object, with its inputs and outputs; ``has_pool``: and with a thread pool."""

    model: BundledModel
    target: Target
    program: ProgramObject
    inputs: tuple[BundleTensor, ...]
    outputs: tuple[BundleTensor, ...]
    has_pool: bool = False

    @property
    def name(self) -> str:
        """The beginning of its symbols."""
        return self.model.name

    @property
    def upper(self) -> str:
        """The beginning of its macros."""
        return self.name.upper()

    @property
    def codes(self) -> tuple[bytes, ...]:
        """The objects."""
        return (self.program.code, *self.program.parts.values())

    @cached_property
    def facts(self) -> ObjectFacts:
        """Sizes and needs of the objects."""
        objects = [object_facts(code, self.target.object_format) for code in self.codes]
        names = {name for facts in objects for name in facts.undefined}
        return ObjectFacts(sum(facts.loaded_nbytes for facts in objects), tuple(sorted(names)))

    @cached_property
    def needs(self) -> Needs:
        """Functions that a program has to bring.  Raises ``BackendError``."""
        others = (n for n in self.facts.undefined if not n.startswith(f"{self.name}_"))
        return needed_functions(others, self.model.is_integer)

    @cached_property
    def flash(self) -> Flash:
        """Bytes of the functions and of the weights."""
        weights = self.program.weights
        inside = weights.nbytes if weights.placement is Placement.OBJECT else 0
        called = ("level", "run_at") if self.program.parts else ("run",)
        roots = [f"{self.name}_{function}" for function in called]
        return measure_flash(self.codes, self.target, roots, weights.nbytes, inside)

    @property
    def has_weights(self) -> bool:
        """Whether a run takes the constants as an argument."""
        return self.program.weights.placement is Placement.BIN

    @property
    def sources(self) -> tuple[str, ...]:
        """Files that a linker or compiler makes the model of."""
        placed = self.program.weights.placement is Placement.C
        parts = (f"{part}.o" for part in self.program.parts)
        codes = [f"{self.name}_weights.c"] if placed else []
        codes += [f"{self.name}_pool.c"] if self.has_pool else []
        return (f"{self.name}.o", *parts, *codes)


@dataclass(frozen=True)
class BundledModel:
    """Facts about a model that its program does not have.

    name         beginning of its symbols and files
    source_hash  hash of the ONNX model
    is_integer   whether all of its operators compute with integers, apart from rounding inputs and
                 converting outputs
    """

    name: str
    source_hash: str
    is_integer: bool


@dataclass(frozen=True)
class BundleTensor:
    """An input or output.

    name        in the model
    macro       prefix of its macros
    shape       elements lie in row-major order
    scale       ``real = scale * (q - zero_point)``; None for values that are not quantized
    """

    name: str
    macro: str
    c_type: str
    shape: tuple[int, ...]
    nbytes: int
    scale: float | None
    zero_point: int | None

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def to_json(self) -> dict[str, Any]:
        """The facts in types that ``json`` writes."""
        return {
            "name": self.name,
            "c_type": self.c_type,
            "shape": list(self.shape),
            "nbytes": self.nbytes,
            "scale": self.scale,
            "zero_point": self.zero_point,
        }


def input_tensors(name: str, program: EmittedProgram) -> tuple[BundleTensor, ...]:
    """The inputs of a bundle called ``name``, in their order."""
    return tuple(_tensors(f"{name}_INPUT", program.inputs))


def output_tensors(name: str, program: EmittedProgram) -> tuple[BundleTensor, ...]:
    """The outputs, in their order."""
    return tuple(_tensors(f"{name}_OUTPUT", program.outputs))


def _tensors(prefix: str, ports: Iterable[tuple[str, View]]) -> Iterable[BundleTensor]:
    for index, (name, view) in enumerate(ports):
        kind, quant = view.type, per_tensor(view)
        scale, zero_point = (quant.scale, quant.zero_point) if quant else (None, None)
        macro = f"{prefix}{index}".upper()
        c_type = C_TYPES[kind.dtype]
        shape, nbytes = kind.fixed_shape, int(kind.nbytes)
        yield BundleTensor(name, macro, c_type, shape, nbytes, scale, zero_point)


def is_identifier(name: str) -> bool:
    """Whether symbols of C may begin with a name."""
    return re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) is not None


@dataclass(frozen=True)
class Needs:
    """Functions beside memcpy and memset.

    libm      float functions of C
    system    functions that say what the processor has
    compiler  arithmetic that the processor lacks, in the compiler's library
    """

    libm: tuple[str, ...]
    system: tuple[str, ...]
    compiler: tuple[str, ...]

    def __str__(self) -> str:
        functions = ", ".join((*self.libm, *self.system, *self.compiler))
        return f"memcpy, memset; {functions or 'no other function'}"


def needed_functions(undefined: Iterable[str], is_integer: bool) -> Needs:
    """The needs of an object; ``is_integer``: its model computes with integers only.

    Raises ``BackendError`` for functions that no program has, and for those of libm in an integer
    model.
    """
    names = [name for name in undefined if name not in EVERYWHERE]
    compiler = tuple(name for name in names if name.startswith(COMPILERS_OWN))
    libm = tuple(name for name in names if name in LIBM)
    system = tuple(name for name in names if name in SYSTEM)
    provided = {*system, *compiler, *(() if is_integer else libm)}
    if unknown := [name for name in names if name not in provided]:
        raise BackendError(
            f"the code of the model would call {', '.join(unknown)}, which a program need not have."
            " Remedy: another target; it is an error of quantglow."
        )
    return Needs(libm, system, compiler)

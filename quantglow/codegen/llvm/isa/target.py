"""Targets as data: LLVM's names of a processor, instruction set, levels, detection of features.

Features are detected by code that calls no library (``Detection``): an LLVM IR text that defines
words of 32 bits, in which a feature is a set of bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from quantglow.codegen.llvm.isa.costs import Choices, Core
from quantglow.codegen.llvm.isa.dot import DotProduct
from quantglow.codegen.llvm.isa.interface import InstructionSet, Sharing
from quantglow.codegen.llvm.isa.waiting import WaitInstructions, polling
from quantglow.ir.types import DType
from quantglow.support.classes import Concise


@dataclass(frozen=True)
class Detection:
    """Code that asks the processors of a family for their features.

    helpers  functions and declarations
    words    instructions that define the words, from the beginning of a function
    bits     feature -> its words, each with a mask
    systems  words in the triples of systems on which it works
    """

    helpers: str
    words: str
    bits: Mapping[str, tuple[tuple[str, int], ...]]
    systems: tuple[str, ...] = ("linux",)

    def masks(self, features: Iterable[str]) -> dict[str, int]:
        """The bits of each word that a set of features needs."""
        masks: dict[str, int] = {}
        for feature in features:
            for word, mask in self.bits[feature]:
                masks[word] = masks.get(word, 0) | mask
        return masks


@dataclass(frozen=True)
class Requirement:
    """Features that code ``needs``, and LLVM's names of a processor on which asking for them
    runs: the least one of the family."""

    detection: Detection
    needs: tuple[str, ...]
    cpu: str
    features: str

    @property
    def attributes(self) -> str:
        """The attributes of functions that run on that processor."""
        return f'"target-cpu"="{self.cpu}" "target-features"="{self.features}" '


@dataclass(frozen=True)
class LevelChoice:
    """The choice between levels, best first: the features that each ``needs``."""

    detection: Detection
    needs: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Settings:
    """Settings of LLVM's code generation: by default, code may lie anywhere and reaches its
    constants directly.

    ``abi``: LLVM's name of the calling convention, empty for that of the triple.
    """

    reloc: str = "pic"
    codemodel: str = "small"
    abi: str = ""


class ObjectFormat(StrEnum):
    """The format of objects."""

    ELF = "elf"
    MACH_O = "macho"
    COFF = "coff"
    WASM = "wasm"

    def section(self, name: str) -> str:
        """The clause that puts a definition into a section of its own, so that linkers leave it out
        where nobody uses it; empty where names of sections mean something else."""
        return f', section "{name}"' if self is ObjectFormat.ELF else ""


@dataclass(frozen=True)
class Host:
    """The processor of this machine in LLVM's words: triple, processor name, and features as
    ``+avx2,-amx-tile``."""

    triple: str
    cpu: str
    features: str

    def has(self, feature: str) -> bool:
        """Whether the processor has a feature."""
        return f"+{feature}" in self.features.split(",")


@dataclass(frozen=True, repr=False)
class Target(Concise):
    """A processor to generate code for.

    ``choices`` are no part of its equality: whatever they are, one library and one pool of threads
    serve it.  They are a part of ``key``.  ``requirement``: what a program outside of this process
    asks its processor for.
    """

    name: str
    triple: str
    cpu: str
    features: str
    isa: InstructionSet
    core: Core = Core()
    settings: Settings = Settings()
    choices: Choices = field(default=Choices(), compare=False)
    requirement: Requirement | None = field(default=None, compare=False)

    def __hash__(self) -> int:
        """Hash of the name: each call of a program looks for its run-time system by target."""
        return hash(self.name)

    @property
    def key(self) -> str:
        """All that code generation depends on, as text."""
        parts = (
            self.name,
            self.triple,
            self.cpu,
            self.features,
            self.isa,
            self.core,
            self.settings,
            self.choices.key,
        )
        return repr(parts)

    @property
    def is_registered(self) -> bool:
        """Whether the code of its instruction set is outside of the package, and no part of
        ``key``."""
        return not type(self.isa).__module__.startswith("quantglow.")

    @property
    def object_format(self) -> ObjectFormat:
        """The format of its objects."""
        for part, object_format in (
            ("wasm", ObjectFormat.WASM),
            ("apple", ObjectFormat.MACH_O),
            ("windows", ObjectFormat.COFF),
        ):
            if part in self.triple:
                return object_format
        return ObjectFormat.ELF

    @property
    def is_microcontroller(self) -> bool:
        """Whether it is a Cortex-M: RAM is counted in kilobytes."""
        return self.triple.startswith("thumb")

    @property
    def is_module(self) -> bool:
        """Whether programs are modules of WebAssembly."""
        return self.object_format is ObjectFormat.WASM

    @property
    def has_threads(self) -> bool:
        """Whether there is a system with threads."""
        return not self.is_module and "-none-" not in self.triple

    @property
    def scales_vectors(self) -> bool:
        """Whether vector registers differ in width between the processors that run its code."""
        return self.triple.startswith("riscv") and "+v" in self.features.split(",")

    @property
    def saves_code(self) -> bool:
        """Whether code counts as well as time."""
        return self.isa.sharing is not Sharing.NONE

    @property
    def vector_nbytes(self) -> int:
        """Bytes of a vector register."""
        return self.isa.vector_nbytes

    @property
    def f32_lanes(self) -> int:
        """float32 or int32 elements of a vector."""
        return self.isa.vector_nbytes // 4

    @property
    def registers(self) -> int:
        """Number of vector registers."""
        return self.isa.registers

    @property
    def waiting(self) -> WaitInstructions:
        """How threads wait for each other: instruction sets know Linux's ways."""
        return self.isa.waiting if "linux" in self.triple else polling(self.triple)

    def dot_product(self, x: DType) -> DotProduct:
        """The dot product of rows of ``x`` (float32, int16 or bytes) with float32 or int8 weights.

        Raises ``BackendError`` for element types that the instruction set does not multiply.
        """
        return self.isa.dot_product(x, self.core)


def as_it_is(host: Host) -> Host:
    """The description of processors about which LLVM tells everything."""
    return host


def never_refused() -> str:
    """The permission of levels that need none from the operating system."""
    return ""


@dataclass(frozen=True)
class Level:
    """An instruction set with the features that processors need to run its code.

    ``triple``: LLVM's triple, if the levels of the family have several.
    ``refusal``: why the operating system refuses it to this process, empty if it does not; asked
    only where the processor has all features.
    """

    name: str
    cpu: str
    features: str
    isa: InstructionSet
    needs: tuple[str, ...] = ()
    refusal: Callable[[], str] = never_refused
    triple: str = ""


@dataclass(frozen=True)
class TargetFamily:
    """The levels of one processor architecture, best first; each runs on every processor of a
    better one.

    ``triple``: LLVM's triple for code that need not run here; empty: that of this machine.
    ``tuned``: a level's target with everything that is known of this processor.
    ``architectures``: the first part of the triples of all processors of the family, if that of
    ``triple`` is not the only one.
    ``completed``: LLVM's description of this processor with what LLVM does not find out.
    ``settings``: those of code generation for processors other than this one.
    ``detection``: code that finds out the features of a processor, if there is any.
    """

    triple: str
    levels: tuple[Level, ...]
    tuned: Callable[[Level, Host], Target]
    architectures: tuple[str, ...] = ()
    completed: Callable[[Host], Host] = as_it_is
    settings: Settings = Settings()
    detection: Detection | None = None

    def matches(self, host: Host) -> bool:
        """Whether a processor is one of this family."""
        names = self.architectures or (self.triple.partition("-")[0],)
        return host.triple.startswith(names)

    def obstacle(self, level: Level, host: Host) -> str:
        """Why code of a level cannot run on ``host``, empty if it can."""
        if not self.matches(host):
            return f"this processor is {host.triple}"
        missing = [name for name in level.needs if not host.has(name)]
        if missing:
            return f"this processor lacks {', '.join(missing)}"
        return level.refusal()

    def target(self, level: Level, triple: str) -> Target:
        """A level as data, of no particular processor."""
        return Target(
            level.name,
            level.triple or triple,
            level.cpu,
            level.features,
            level.isa,
            settings=self.settings,
            requirement=self.requirement(level, level.triple or triple),
        )

    def requirement(self, level: Level, triple: str) -> Requirement | None:
        """The features that a level needs beyond the least one, where code can ask for them."""
        detection, least = self.detection, self.levels[-1]
        if detection is None or not any(system in triple for system in detection.systems):
            return None
        needs = tuple(n for n in level.needs if n in detection.bits and n not in least.needs)
        return Requirement(detection, needs, least.cpu, least.features) if needs else None

"""Interface of an instruction set: the operations whose instructions differ.

Kernels are written against it.  They read widths, numbers of registers and capabilities here and
ask for operations by what they compute; no kernel knows a processor.  ``Sharing`` describes layers
with one kernel between them, in a bundle.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from quantglow.codegen.llvm.builder import Builder
from quantglow.codegen.llvm.isa.costs import Core
from quantglow.codegen.llvm.isa.dot import (
    BlockDot,
    DotProduct,
    LaneProducts,
    MergedDot,
    PairDot,
    WindowWords,
)
from quantglow.codegen.llvm.isa.waiting import WaitInstructions
from quantglow.codegen.llvm.values import FLOAT, I32, I64, Operand, Type, Value, vector
from quantglow.ir.symbolic.size import Dim
from quantglow.ir.types import DType
from quantglow.support.arrays import Array

LINE_NBYTES = 64
"""Bytes of a cache line, to which memory is aligned."""

Steps = Callable[[Builder, int, Value], Value]
"""The float32 arithmetic of a function, for some lanes."""

RAISED = 2.0**23
"""From here to ``2**24``, float32 are whole numbers: a byte in the last bits is added to it."""


class Sharing(Enum):
    """Layers with one kernel between them, which takes the numbers in which they differ.

    ``NONE``   those whose kernels are equal
    ``OUTER``  those whose kernels differ outside of the addresses of their innermost loops
    ``ALL``    those whose kernels differ in numbers
    """

    NONE = "none"
    OUTER = "outer"
    ALL = "all"


class ByteTable(Protocol):
    """Look-up of bytes in a table of 256 entries that stays in registers."""

    @property
    def unroll(self) -> int:
        """Vectors whose look-ups are interleaved."""

    @property
    def entries_at(self) -> int:
        """Offset of the plain table within ``packed``, in bytes."""

    def packed(self, values: Array) -> Array:
        """The constant that a kernel loads, for the uint8 table ``values``."""

    def load(self, b: Builder, entries: Value) -> list[Value]:
        """The registers that hold the table, from the address of ``packed``."""

    def look_up(self, b: Builder, table: Sequence[Value], codes: Value, signed: bool) -> Value:
        """A vector of entries for a vector of codes, in [0, 255] or (``signed``) [-128, 127]."""


class MatrixTiles(Protocol):
    """Registers that hold matrices of bytes, and their product added to a matrix of int32."""

    @property
    def registers(self) -> int:
        """Number of matrix registers."""

    @property
    def rows(self) -> int:
        """Maximum number of rows of a register."""

    @property
    def row_nbytes(self) -> int:
        """Maximum number of bytes of a row."""

    def configure(self, b: Builder, sizes: Sequence[tuple[int, int]]) -> None:
        """Clear all registers and give each its (rows, bytes of a row); once in a kernel."""

    def release(self, b: Builder) -> None:
        """Give the registers back to the system."""

    def permission(self, name: str, triple: str) -> str:
        """A function ``i64 @name()`` that asks the operating system to let this process use the
        registers and gives 0 if it does; empty where no system wants to be asked."""

    def load(self, b: Builder, register: int, pointer: Value, pitch: Dim) -> None:
        """Load rows that lie ``pitch`` bytes apart."""

    def load_past_first_cache(self, b: Builder, register: int, pointer: Value, pitch: Dim) -> None:
        """The same, for bytes that the first-level cache should not keep."""

    def store(self, b: Builder, register: int, pointer: Value, pitch: int) -> None:
        """Store rows ``pitch`` bytes apart."""

    def multiply(self, b: Builder, sums: int, x: int, w: int) -> None:
        """Add to ``sums`` [rows, columns] the product of uint8 ``x`` [rows, depth] with int8 ``w``
        [depth / 4, columns, 4]; int32, which wraps around."""


class Linking(Protocol):
    """How ELF objects of a processor are made executable."""

    @property
    def machine(self) -> int:
        """The number of the processor in ELF headers."""

    def is_call(self, kind: int) -> bool:
        """Whether a relocation is that of a call, which may go by way of a stub."""

    def patch(self, data: bytearray, at: int, kind: int, target: int) -> bool:
        """Make the code at ``at`` reach ``target``, both offsets in ``data``; False where the
        relocation is of a kind that kernels have not."""

    def stub(self, address: int) -> bytes:
        """Code that continues at an address anywhere."""

    def publish(self, address: int, nbytes: int) -> bool:
        """Let all threads execute the code just written there; False where nobody knows how."""


@dataclass(frozen=True)
class InstructionSet(ABC):
    """The operations of one instruction set.

    ``vector_nbytes``  bytes of a vector register
    ``registers``      number of vector registers
    ``unsigned_activations``  whether int8 activations are best stored as uint8 (plus 128)
    ``has_fma``        whether float32 multiply-add with one rounding is an instruction
    ``has_masks``      whether loads and stores of single lanes are cheap
    ``permutes_bytes``  whether any permutation of the bytes of two vectors is one instruction
    ``shuffles_bytes``  whether any order of the bytes of a group (``group_nbytes``), with zeros
    among them, is one instruction
    ``rounds_floats``  whether rint, floor and ceil of any float32 are instructions
    ``limits_floats``  whether limits of float32 cost less than those of integers
    ``index``          LLVM's type of offsets, sizes and loop counters: that of addresses
    """

    vector_nbytes: int
    registers: int
    unsigned_activations: bool
    has_fma: bool = False
    has_masks: bool = False
    permutes_bytes: bool = False
    shuffles_bytes: bool = False
    rounds_floats: bool = False
    limits_floats: bool = False
    index: Type = I64

    # -- products

    @abstractmethod
    def dot_product(self, x: DType, core: Core) -> DotProduct:
        """The dot product of rows of ``x`` with float32 or int8 weights.

        Raises ``BackendError`` for element types that are not multiplied.
        """

    def pair_product(self, core: Core) -> PairDot | None:
        """A faster dot product of bytes for some weights; None if there is none."""
        return None

    def symmetric_product(self, x: DType, core: Core) -> DotProduct | None:
        """A faster dot product of bytes for weights above -128; None if there is none."""
        return None

    def block_product(self, x: DType, core: Core) -> BlockDot | None:
        """Products of blocks of two rows by two columns; None where there are none."""
        return None

    def merged_product(self, core: Core) -> MergedDot | None:
        """Products of two channels' weights in one word; None where there are none."""
        return None

    @property
    def row_products(self) -> bool:
        """Whether ``row_product`` is an instruction."""
        return False

    def row_product(self, b: Builder, total: Operand, x: Value, w: Value) -> Value:
        """An int32 plus the products of all lanes of two vectors of signed bytes."""
        raise NotImplementedError

    @property
    def window_words(self) -> WindowWords | None:
        """Windows of one channel as operands of ``row_product``; None where others are faster."""
        return None

    @property
    def lane_products(self) -> LaneProducts | None:
        """Products of bytes lane by lane; None where others are faster."""
        return None

    @abstractmethod
    def word_products(self, b: Builder, x: Operand, y: Operand) -> Value:
        """int32 lanes ``x[2i] * y[2i] + x[2i + 1] * y[2i + 1]`` of vectors of int16."""

    def keep(self, b: Builder, kind: Type, value: Value) -> Value:
        """The same value; between additions, where LLVM would reorder a sum and spill."""
        return value

    @property
    def tiles(self) -> MatrixTiles | None:
        """Matrix registers; None if there are none."""
        return None

    # -- results

    @property
    @abstractmethod
    def group_nbytes(self) -> int:
        """Granule of packing within lanes, in bytes: packs interleave groups of so many bytes of
        their operands.  ``vector_nbytes`` where packs leave one operand after the other."""

    @abstractmethod
    def pack_words(self, b: Builder, x: Value, y: Value) -> Value:
        """Two vectors of int32 saturated to int16 in one vector: a group of ``x``, a group of
        ``y``, and so on."""

    @abstractmethod
    def pack_bytes(self, b: Builder, x: Value, y: Value, signed: bool) -> Value:
        """Two vectors of int16 saturated to int8 or uint8 in one vector, their groups in turn."""

    @abstractmethod
    def round_to_int(self, b: Builder, lanes: int, value: Value) -> Value:
        """float32 rounded half to even, as int32, for any power of two of ``lanes``.

        NaN and values below the range of int32 give its minimum.  Values above the range give the
        minimum or a number of at least 2**30, so callers limit them before.
        """

    def round_number(self, b: Builder, lanes: int, value: Value) -> Value:
        """The same for numbers below ``2**31``: not NaN; the minimum for what is too small."""
        return self.round_to_int(b, lanes, value)

    def raised_bytes(self, b: Builder, data: Value, places: Sequence[int]) -> Value | None:
        """float32 ``RAISED`` plus each of the uint8 at ``places`` of a vector of bytes; None where
        that is no instruction."""
        return None

    @property
    def requantizes_integers(self) -> bool:
        """Whether ``requantized`` is cheaper than float32 arithmetic."""
        return False

    def requantized(self, b: Builder, lanes: int, sums: Value, scale: Operand) -> Value:
        """int32 ``rint(float32(sums) * scale)``, limited to more than 16 bits, for any power of two
        of ``lanes`` and positive float32 ``scale``."""
        raise NotImplementedError

    def scaled(self, b: Builder, lanes: int, sums: Value, scale: Operand) -> Value:
        """``float32(sums) * scale`` of int32 sums."""
        floats = vector(lanes, FLOAT)
        reals = b.cast("sitofp", vector(lanes, I32), sums, floats)
        return b.op("fmul", floats, reals, scale)

    def nearest_within(self, b: Builder, values: Value, bound: Value) -> Value | None:
        """A vector of float32 limited to ``[-bound, bound]``, NaN as ``bound`` or ``-bound``; None
        if that is no instruction."""
        return None

    # -- look-up

    @property
    def byte_table(self) -> ByteTable | None:
        """Look-up in registers; None where each element takes a load of its own."""
        return None

    # -- code generation

    def legal(self, text: str) -> str:
        """LLVM IR of the same meaning that LLVM translates rightly for this instruction set: float
        comparisons are ordered (``o…``: false for NaN), and ``select`` with one of them is how
        kernels state which operand a minimum or maximum takes for NaN."""
        return text

    def function(
        self, b: Builder, name: str, lanes: int, x: Value, steps: Mapping[str, Steps]
    ) -> Value:
        """The float32 function ``name``, by its ``steps`` or others with the same results."""
        return steps[name](b, lanes, x)

    @property
    def branches(self) -> bool:
        """Whether single float32 are computed one of two ways, as a branch decides, not both."""
        return False

    def routines(self, texts: Sequence[str]) -> str:
        """LLVM IR of functions that LLVM calls for the operations of some texts; the others are
        those of the compiler's library."""
        return ""

    @property
    def routine_levels(self) -> Sequence[set[str]]:
        """Names of functions that kernels call: those of each level call those of the next ones."""
        return ()

    # -- measuring

    @abstractmethod
    def unknown(self, b: Builder, kind: Type, value: Value) -> Value:
        """The same vector, unknown to LLVM: work on it is done every time."""

    @abstractmethod
    def use(self, b: Builder, kind: Type, value: Value) -> None:
        """Keep LLVM from dropping a vector that nobody reads."""

    # -- memory

    @property
    def slack_nbytes(self) -> int:
        """Bytes after arenas, temporaries and constants that kernels may read, never write: a cache
        line, or a vector if that is longer."""
        return max(LINE_NBYTES, self.vector_nbytes)

    @property
    def prefetches(self) -> bool:
        """Whether a prefetch fills a cache."""
        return True

    @property
    def sharing(self) -> Sharing:
        """Kernels of bundles that are one: where memory is small, code counts as well as time."""
        return Sharing.NONE

    @property
    def float_lanes(self) -> int:
        """Elements of float32 that a step of a loop computes where code counts; 0 where it does
        not, or where vectors are registers."""
        return 0

    # -- system

    @property
    @abstractmethod
    def waiting(self) -> WaitInstructions:
        """How threads wait for each other."""

    @property
    def linking(self) -> Linking | None:
        """How objects are linked; None where LLVM's own linker does it.

        That linker knows the relocations of every processor, so ``portable`` needs no other one.
        One of our own saves memory and time of start, see ``jit/linker.py``.
        """
        return None

"""The model of a bundle: what every file of it is written from."""

from __future__ import annotations

from dataclasses import dataclass

from quantglow.backends.llvm.aot.program_object import ProgramObject
from quantglow.backends.llvm.aot.weights import Placement
from quantglow.backends.llvm.isa.target import Target
from quantglow.bundle.objects.facts import object_facts
from quantglow.bundle.objects.tables import ObjectFacts
from quantglow.bundle.tensors import Tensor
from quantglow.concise import Concise
from quantglow.lazy import cached_property


@dataclass(frozen=True, eq=False, repr=False)
class Contents(Concise):
    """A model called ``name`` as an object, with its inputs and outputs.

    ``source_hash``: that of the ONNX model.
    """

    name: str
    source_hash: str
    target: Target
    made: ProgramObject
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]

    @property
    def upper(self) -> str:
        """The beginning of its macros."""
        return self.name.upper()

    @cached_property
    def facts(self) -> ObjectFacts:
        """Sizes and needs of the object."""
        return object_facts(self.made.code, self.target.object_format)

    @property
    def code_nbytes(self) -> int:
        """Bytes of the functions, and of their own constants."""
        weights = self.made.weights
        inside = weights.nbytes if weights.placement is Placement.OBJECT else 0
        return self.facts.loaded_nbytes - inside

    @property
    def has_weights(self) -> bool:
        """Whether a run takes the constants as an argument."""
        return self.made.weights.placement is Placement.BIN

    @property
    def sources(self) -> tuple[str, ...]:
        """Files that a linker or compiler makes the model of."""
        placed = self.made.weights.placement is Placement.C
        return (f"{self.name}.o", *([f"{self.name}_weights.c"] if placed else []))

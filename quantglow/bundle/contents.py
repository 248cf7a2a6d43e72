"""The model of a bundle: what every file of it is written from."""

from __future__ import annotations

from dataclasses import dataclass

from quantglow.backends.llvm.aot.program_object import ProgramObject
from quantglow.backends.llvm.aot.weights import Placement
from quantglow.backends.llvm.isa.target import Target
from quantglow.bundle.flash import Flash, flash_of
from quantglow.bundle.needs import Needs, needs_of
from quantglow.bundle.objects.facts import object_facts
from quantglow.bundle.objects.tables import ObjectFacts
from quantglow.bundle.tensors import Tensor
from quantglow.concise import Concise
from quantglow.lazy import cached_property


@dataclass(frozen=True)
class Model:
    """Facts about a model that its program does not have.

    name         beginning of its symbols and files
    source_hash  hash of the ONNX model
    is_integer   whether all of its operators compute with integers, apart from rounding inputs and
                 converting outputs
    """

    name: str
    source_hash: str
    is_integer: bool


@dataclass(frozen=True, eq=False, repr=False)
class Contents(Concise):
    """A model as an object, with its inputs and outputs; ``has_pool``: and with a thread pool."""

    model: Model
    target: Target
    made: ProgramObject
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
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
        return (self.made.code, *self.made.parts.values())

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
        return needs_of(others, self.model.is_integer)

    @cached_property
    def flash(self) -> Flash:
        """Bytes of the functions and of the weights."""
        weights = self.made.weights
        inside = weights.nbytes if weights.placement is Placement.OBJECT else 0
        called = ("level", "run_at") if self.made.parts else ("run",)
        roots = [f"{self.name}_{function}" for function in called]
        return flash_of(self.codes, self.target, roots, weights.nbytes, inside)

    @property
    def has_weights(self) -> bool:
        """Whether a run takes the constants as an argument."""
        return self.made.weights.placement is Placement.BIN

    @property
    def sources(self) -> tuple[str, ...]:
        """Files that a linker or compiler makes the model of."""
        placed = self.made.weights.placement is Placement.C
        parts = (f"{part}.o" for part in self.made.parts)
        codes = [f"{self.name}_weights.c"] if placed else []
        codes += [f"{self.name}_pool.c"] if self.has_pool else []
        return (f"{self.name}.o", *parts, *codes)

"""Programs that become the objects of a bundle: one, or one for each level of a processor."""

from __future__ import annotations

from dataclasses import dataclass

from quantglow.backends.llvm.aot.levels import levels_object
from quantglow.backends.llvm.aot.program_object import ProgramObject, program_object
from quantglow.backends.llvm.aot.weights import Placement
from quantglow.backends.llvm.emitted import EmittedProgram
from quantglow.backends.llvm.isa.features import Choice
from quantglow.bundle.contents import Model
from quantglow.concise import Concise


@dataclass(frozen=True, eq=False, repr=False)
class Code(Concise):
    """The program of a model, or those of several levels, best first, and the choice between them
    at run time.
    """

    programs: tuple[EmittedProgram, ...]
    choice: Choice | None = None

    @property
    def base(self) -> EmittedProgram:
        """The program that runs on every processor of the family."""
        return self.programs[-1]

    def made(self, model: Model, placement: Placement) -> ProgramObject:
        """The object, perhaps with parts.  Raises ``BackendError``."""
        if self.choice:
            return levels_object(
                model.name, self.programs, self.choice, placement, model.source_hash
            )
        return program_object(model.name, self.base, placement, model.source_hash)

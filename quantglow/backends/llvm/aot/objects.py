"""Modules of IR text to one object, in a child process: LLVM ends the process where it has no
instruction for an operation.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass

import numpy as np

from quantglow.backends.llvm.aot.stack import REMARKS, Stack, frames_of
from quantglow.backends.llvm.isa.target import Settings, Target
from quantglow.concise import Concise
from quantglow.errors import BackendError
from quantglow.foreign_types import Array
from quantglow.processes.isolation import IsolationError, called

PATIENCE_SECONDS = 1200.0
"""Longest time that LLVM may take for one object."""

DEFINITION = re.compile(r"^(define .*?\) nounwind)", re.MULTILINE)
REPORTED = 'noredzone "warn-stack-size"="0"'
"""Functions with these attributes make LLVM report their bytes of stack, all of them: no function
uses what lies below its frame."""
SMALL = "optsize"
"""The attribute of functions whose code counts."""


SHARED = "linkonce_odr"
"""The linkage of constants that several texts define."""


@dataclass(frozen=True, eq=False, repr=False)
class ObjectFile(Concise):
    """An object: its bytes, and the stack that each of its functions takes."""

    code: bytes
    frames: Mapping[str, Stack]


def object_file(target: Target, texts: Sequence[str], public: Sequence[str]) -> ObjectFile:
    """The object of a target with all functions of some modules; ``public``: the functions that
    other objects see.  Raises ``BackendError``.
    """
    attributes = f"{SMALL} {REPORTED}" if target.saves_code else REPORTED
    texts = [target.isa.legal(text) for text in texts]
    texts += filter(None, [target.isa.routines(texts)])
    marked = (DEFINITION.sub(rf"\1 {attributes}", text) for text in texts)
    arrays = [np.frombuffer(text.encode(), np.uint8) for text in marked]
    facts = {"triple": target.triple, "cpu": target.cpu, "features": target.features}
    more = {"settings": asdict(target.settings), "public": list(public)}
    place = f"{__name__}:compile_here"
    try:
        code, frames = called(place, arrays, facts | more, seconds=PATIENCE_SECONDS)
    except IsolationError as error:
        raise BackendError(f"LLVM made no object for {target.name}: {error}") from error
    stacks = json.loads(frames.tobytes())
    return ObjectFile(code.tobytes(), {name: Stack(*numbers) for name, numbers in stacks.items()})


def compile_here(
    texts: Sequence[Array],
    triple: str,
    cpu: str,
    features: str,
    settings: Mapping[str, str],
    public: Sequence[str],
) -> list[Array]:
    """The object, and its frames as JSON; runs in the child process."""
    from quantglow.backends.llvm.jit import compiler

    compiler.set_option(REMARKS)
    compiler.initialize_all()
    generator = compiler.code_generator(triple, cpu, features, Settings(**settings))
    module = compiler.joined([text.tobytes().decode() for text in texts])
    module.triple, module.data_layout = triple, str(generator.target_data)
    for function in module.functions:
        if not function.is_declaration and function.name not in public:
            function.linkage = "internal"
    for constant in module.global_variables:
        if constant.linkage.name == SHARED:
            constant.linkage = "internal"
    before = os.fstat(2).st_size  # the parent gave a file
    code = generator.emit_object(module)
    said = os.pread(2, os.fstat(2).st_size - before, before)
    frames = {name: astuple(stack) for name, stack in frames_of(said.decode()).items()}
    return [np.frombuffer(code, np.uint8), np.frombuffer(json.dumps(frames).encode(), np.uint8)]

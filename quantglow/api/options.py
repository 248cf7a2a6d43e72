"""Options that several public functions share, of programs and of data.

``quantglow.quantization.options`` declares the options of quantization, and
``quantglow.api.pipeline.request`` those of the check.  A process that loads a model imports this
file, and neither of those.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal

from quantglow.codegen.llvm.targets import LEVELS
from quantglow.memory.plans import FAST, SCHEDULES, Schedule
from quantglow.runtime.programs.answers import ONNXRUNTIME, WAIT, AnswerLog, WhileCompiling
from quantglow.runtime.programs.build import BACKENDS, MAX_THREADS, Compiler, code_generators
from quantglow.support.arguments import instance, integer
from quantglow.support.options import (
    ANY,
    COUNT,
    OBJECT,
    PROGRESS,
    SHAPES,
    OptionKind,
    Options,
    argument,
    choice_among,
    option,
    same_option,
)
from quantglow.transforms.partition import Backend

InputShapes = Mapping[str, Sequence[int]]
"""Input name -> shape, for models that leave dimensions free."""

Progress = bool | Literal["auto"]

TARGET = OptionKind(lambda name, value: instance(name, value, str, "the name of a target"))
THREADS = OptionKind(lambda name, value: integer(name, value, 1, MAX_THREADS), {"type": int})
GENERATORS = OptionKind(lambda name, value: code_generators(value), None)
STEPS = OptionKind(ANY.check, {"nargs": "+", "metavar": "STEP"})


@dataclass(frozen=True, kw_only=True, repr=False)
class CompileOptions(Options):
    """How programs are compiled and run."""

    target: str = option(
        "native",
        TARGET,
        f'"native": the best that this processor has; or a level: {", ".join(LEVELS)} (plain LLVM '
        "IR, without instructions of a particular processor)",
    )
    num_threads: int | None = option(
        None, THREADS.or_none(), "threads of a run; by default one for each physical core"
    )
    schedule: Schedule = option(
        FAST,
        choice_among(SCHEDULES),
        '"memory": search for the order of execution with the smallest arena, up to some seconds; '
        "results are equal",
    )
    while_compiling: WhileCompiling = option(
        WAIT,
        choice_among((WAIT, ONNXRUNTIME)),
        'what answers calls at new shapes of a model with free dimensions.  "wait": the program, '
        'once it is compiled; "onnxruntime": at once, with the float model, while a thread '
        "compiles the program; answers of an int8 model change when that is ready.  ``answers`` of "
        "the model counts both; an error of the compiler is raised by the next call at the shape",
    )
    backends: Sequence[Backend] = option(
        (),
        GENERATORS,
        "code generators of your own, see ``quantglow.Backend`` and "
        "``quantglow.ProgramGenerator``; they are asked first, in order",
    )


@dataclass(frozen=True, repr=False)
class ProgramOptions(CompileOptions):
    """Options of ``compile`` and ``load``, which take the first two by position, too."""

    target: str = same_option(CompileOptions, "target")
    num_threads: int | None = same_option(CompileOptions, "num_threads")
    _: KW_ONLY
    backend: str = option(
        "llvm", choice_among(BACKENDS), '"llvm", or "reference": the same program in NumPy'
    )

    @property
    def compiler(self) -> Compiler:
        """The compiler with these options.  Raises ``BackendError``."""
        return Compiler.of(
            self.target,
            self.num_threads,
            self.backend,
            self.backends,
            self.schedule,
            answers=AnswerLog.of(self.while_compiling),
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class ModelOptions(Options):
    """The data that a model takes."""

    input_shapes: InputShapes | None = option(
        None,
        SHAPES,
        "shapes of inputs that the model leaves free; a model that is compiled without it serves "
        "them all, compiled on first use",
        metavar="NAME:D,D,…",
    )
    before: Any = option(
        None,
        STEPS,
        "steps of ``quantglow.steps`` that become part of the model, from the data that is fed to "
        "its input; with several inputs a dict from name to steps.  All data is what the model "
        "with these steps takes, as uint8 images",
    )
    after: Any = option(None, STEPS, "such steps from the output of the model to the result")


@dataclass(frozen=True, kw_only=True, repr=False)
class DataOptions(ModelOptions):
    """The same, and the samples that it is calibrated on."""

    subset_size: int = option(
        300, COUNT, "maximum number of calibration samples (batches of the model)"
    )
    progress: Progress = option(
        "auto", PROGRESS, 'progress bars on stderr; "auto": only in a terminal or a notebook'
    )


@dataclass(frozen=True, repr=False)
class OneModel(Options):
    """The model, which comes first and needs no name, and samples to export it on."""

    model: Any = field(
        metadata=argument(
            "the path, the bytes or the ``onnx.ModelProto`` of a model; one of PyTorch or "
            "scikit-learn is exported; ``compile`` takes a graph, too"
        )
    )
    _: KW_ONLY
    samples: Any = option(
        None, OBJECT, "those on whose first one a model of PyTorch or scikit-learn is exported"
    )


@dataclass(frozen=True, repr=False)
class CalibratedModel(Options):
    """The model and its samples, which come first and need no names."""

    model: Any = field(
        metadata=argument(
            "path, bytes or ``onnx.ModelProto``; a ``torch.nn.Module`` is exported on the first "
            "sample (extra ``quantglow[torch]``), or is an ``ExportedProgram``"
        )
    )
    calibration_data: Any = field(
        metadata=argument(
            "samples (dicts, arrays or tuples), a CalibrationDataReader, a path of an ``.npz`` "
            "file, a ``Profile`` or its path"
        )
    )

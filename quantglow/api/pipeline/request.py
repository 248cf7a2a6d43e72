"""Request: the checked options of ``quantize_and_compile``, as every stage sees them, and stage 1.

Stage 1 imports a model as a family of float graphs.
``computing`` chooses whether machine code or NumPy computes layers and statistics meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from quantglow.api.models.families import first_of, open_float_family
from quantglow.api.models.late_families import LateFamily
from quantglow.api.options import CalibratedModel, CompileOptions, DataOptions, InputShapes
from quantglow.api.pipeline.samples import profile_in
from quantglow.ir.graph.family import Case, Family, LateResults
from quantglow.ir.ops.native import NativeOps, computing_with
from quantglow.profiling.samples.feeds import first_feeds
from quantglow.quantization.accuracy_control import DROP_TYPES, Contract, DropType
from quantglow.quantization.options import COMPILED, ProfileWith, QuantizationConfig
from quantglow.support import debug
from quantglow.support.errors import OptionError, QuantglowError, UnsupportedOpError
from quantglow.support.options import (
    ANY,
    NUMBER,
    OBJECT,
    POSITIVE,
    SWITCH,
    Options,
    choice_among,
    option,
    option_values,
    select_options,
)

TRANSFORMER = "transformer"
"""The model type of NNCF."""


@dataclass(frozen=True)
class AccuracyContract:
    """``max_drop`` and its companions, before there is a model to measure.

    Raises ``OptionError`` for values that make no contract.
    """

    max_drop: float
    drop_type: str = "absolute"
    validation_fn: Callable[..., float] | None = None
    max_minutes: float | None = None

    def __post_init__(self) -> None:
        checked = self.measure_by(lambda model: 0.0)
        object.__setattr__(self, "max_drop", checked.max_drop)
        object.__setattr__(self, "max_minutes", checked.max_minutes)

    def measure_by(self, figure: Callable[[Any], float]) -> Contract[Any]:
        """The contract on ``validation_fn``, without it on another figure."""
        metric = figure if self.validation_fn is None else self.validation_fn
        return Contract(self.max_drop, metric, self.drop_type, self.max_minutes)


@dataclass(frozen=True, kw_only=True, repr=False)
class CheckOptions(Options):
    """Measurements of the int8 model, and the accuracy that it must keep."""

    verify: bool = option(
        True,
        SWITCH,
        "compare with onnxruntime, for the report, on samples that are held out of calibration: up "
        "to 60 beyond ``subset_size``, or one in five of ten or more; of fewer, on the same",
    )
    validation_data: Any = option(
        None,
        ANY,
        "samples for the check, in the forms of ``calibration_data``; an array ``labels`` (class "
        "indices) beside the inputs, or on a command line a subfolder of images for each class, "
        "gives the share of right answers of float and int8",
        metavar="DATA",
    )
    max_drop: float | None = option(
        None,
        NUMBER.or_none(),
        "accuracy that may be lost; values become int16, then operators float, in the order of "
        "their sensitivity for the time it costs, until it holds.  The figure is minus the "
        "relative error of the outputs on the samples checked, so 0.1 is an SQNR of 20 dB, 0.01 of "
        "40 dB; in Python ``validation_fn`` may give another one",
    )
    drop_type: DropType = option(
        "absolute",
        choice_among(DROP_TYPES),
        'of ``max_drop``: "absolute", or "relative" to the float model\'s figure',
    )
    validation_fn: Callable[..., float] | None = option(
        None, OBJECT, "a compiled model -> its figure for ``max_drop``, better when larger"
    )
    max_minutes: float | None = option(
        None,
        POSITIVE.or_none(),
        "bounds the search for ranges, scales and rounded weights, and again that of ``max_drop``; "
        "the best found until then is kept, as after Ctrl-C, and the report says so",
    )
    measure_speed: bool = option(
        False,
        SWITCH,
        "keep float the layers that int8 makes slower, timed on this machine: may differ by run",
    )
    measure_latency: bool = option(
        False,
        SWITCH,
        "time one call for the report, beside onnxruntime's float model in a child process: about "
        "half a second, or three runs of a slow model",
    )

    @property
    def contract(self) -> AccuracyContract | None:
        """The contract on ``max_drop``, None without it.  Raises ``OptionError``."""
        if self.max_drop is not None:
            return AccuracyContract(
                self.max_drop, self.drop_type, self.validation_fn, self.max_minutes
            )
        if self.validation_fn is not None:
            raise OptionError(
                "validation_fn belongs to max_drop. Remedy: pass max_drop, what may be lost."
            )
        return None


@dataclass(frozen=True, kw_only=True, repr=False)
class QuantizationArguments(
    CompileOptions, CheckOptions, DataOptions, QuantizationConfig, CalibratedModel
):
    """The arguments of ``quantize_and_compile``."""

    model_type: Literal["transformer"] | None = option(
        None,
        choice_among([TRANSFORMER]).or_none(),
        "as in NNCF, which then smooths activations and keeps normalizations and masks in float; "
        "here every model gets that, layer by layer where it helps, so it changes nothing",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.contract


@dataclass(frozen=True, kw_only=True, repr=False)
class QuantizationRequest(CheckOptions, DataOptions):
    """How a model is to be quantized: options of ``quantize_and_compile``, checked before.

    ``holds_out``: some samples are kept from calibration for the check.  ``depth``: number of
    models that the model is a part of.
    """

    config: QuantizationConfig = field(default_factory=QuantizationConfig)
    holds_out: bool = False
    depth: int = 0

    @staticmethod
    def of(options: QuantizationArguments) -> QuantizationRequest:
        """The request of a user."""
        return QuantizationRequest(
            config=select_options(options, QuantizationConfig),
            holds_out=options.verify,
            **option_values(options, CheckOptions),
            **option_values(options, DataOptions),
        )

    def __post_init__(self) -> None:
        """Leave the values as they are: what is left of ``max_minutes`` may be nothing."""


@dataclass(frozen=True)
class Imported:
    """The float graphs of a model.

    model    the user's model
    data     the calibration data; a sample that was read for its shapes is part of it again
    seconds  wall time by stage; later stages add theirs
    """

    model: Any
    family: Family
    data: Any
    seconds: dict[str, float] = field(default_factory=dict)


def import_request(model: Any, data: Any, input_shapes: InputShapes | None = None) -> Imported:
    """Import a model at the shapes that it fixes, that are given, or that ``data`` begins with.

    Raises ``UnsupportedOpError`` where no part of it can be compiled.
    """
    seconds: dict[str, float] = {}
    shapes = Case.of({name: tuple(shape) for name, shape in (input_shapes or {}).items()})

    def attempt(late_results: LateResults) -> Imported:
        nonlocal data  # a sample that was read is part of it again
        family = open_float_family(model, input_shapes, late_results)
        if late_results is not LateResults.REFUSED and not family.signature.is_free:
            _try_out(family, Case.of(family.signature.default or {}))
        if family.is_single:
            return Imported(model, family, data, seconds)
        case, data = _first_case(family, data)
        if isinstance(family, LateFamily):
            _check_late(family, case, shapes, data)
        elif case is not None:
            _try_out(family, case)
        return Imported(model, family, data, seconds)

    with debug.time_stage("import", seconds):
        return first_of(attempt)


def _check_late(family: LateFamily, first: Case | None, shapes: Case, data: Any) -> None:
    """Raise ``UnsupportedOpError`` unless graphs with late sizes serve a model.

    Sizes that agree only in a run, as equal ones of two results, have no graph; where sizes decide
    the graph, each would need a program.  The profiler, which comes next, says what is wrong with
    samples that do not fit.
    """
    is_complete = first is None and profile_in(data) is None
    is_complete |= not family.graph_at(first or shapes).has_free_sizes
    if not is_complete or family.is_of_one_size:
        raise UnsupportedOpError(["sizes of results decide what is computed behind them"])


def _first_case(family: Family, data: Any) -> tuple[Case | None, Any]:
    """The case of a profile or of the first sample, and the data with that sample still in it.

    None for samples that do not fit: the profiler, which comes next, says why.
    """
    if (recorded := profile_in(data)) is not None:
        return next(iter(recorded.main_cases), None), data
    feeds, data = first_feeds(data, family.signature)
    return None if feeds is None else family.case_for(feeds), data


def _try_out(family: Family, case: Case) -> None:
    """Import the model for a case.  Raises ``UnsupportedOpError``; the profiler other ones."""
    try:
        family.graph_at(case)
    except UnsupportedOpError:
        raise
    except QuantglowError:
        pass


@contextmanager
def computing(profile_with: ProfileWith) -> Iterator[None]:
    """Inside, machine code computes, or NumPy (``options.PROFILES_WITH``).

    NumPy's floating-point errors are handled as by default, whatever the application has set: small
    products underflow.
    """
    ops = _compile_ops() if profile_with == COMPILED else None
    with computing_with(ops), np.errstate(all="warn", under="ignore"):
        yield


def _compile_ops() -> NativeOps:
    """Native code for this processor."""
    # Only here: it loads LLVM, or the cache of kernels.
    from quantglow.runtime.native.array_ops import array_kernels

    return array_kernels()

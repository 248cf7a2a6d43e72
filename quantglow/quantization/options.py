"""Options of quantization.  Plain data, checked at construction; no graph is needed yet."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, Literal, Protocol, get_args

from quantglow.support.arguments import choice, fields_named, flag, integer, number, strings
from quantglow.support.classes import Concise
from quantglow.support.errors import OptionError
from quantglow.support.options import (
    NAMES,
    NATURAL,
    SWITCH,
    OptionKind,
    Options,
    by_position,
    choice_among,
    declarations,
    document,
    option,
)

AUTO, NONE = "auto", "none"
"""All techniques that are worth their time, and, on a command line, no technique."""

Preset = Literal["mixed", "performance"]
PRESETS: tuple[Preset, ...] = get_args(Preset)
"""``mixed``: asymmetric activations.  ``performance``: zero point 0 (-128 where none is < 0)."""

Method = Literal["auto", "minmax", "entropy", "percentile", "mse"]
METHODS: tuple[Method, ...] = get_args(Method)
"""How a tensor's range is chosen: from its histogram; ``auto`` by what it does to calibration
samples, see ``quantglow.quantization.search.range_choice``, and without samples as ``minmax``."""

Equalization = Literal[
    "equalize-channels",
    "smooth-activations",
    "mix-channels",
    "align-inputs",
    "fuse-functions",
]
EQUALIZATIONS: tuple[Equalization, ...] = get_args(Equalization)
"""Other forms of the same float network, see ``quantglow.quantization.equalize``; "auto": all, each
where it helps."""

Recovery = Literal["adapt-weights", "round-weights", "search-scales", "correct-bias"]
RECOVERIES: tuple[Recovery, ...] = get_args(Recovery)
"""Techniques that bring int8 closer to float, see ``quantglow.quantization.rounding``."""

AUTO_RECOVERIES: tuple[Recovery, ...] = ("adapt-weights", "round-weights", "correct-bias")
"""Techniques that are worth their time.  ``search-scales`` costs as much as the others together,
for 0.1 dB on EfficientNet-Lite0.
"""

Effort = Literal["fast", "default", "best"]
EFFORTS: tuple[Effort, ...] = get_args(Effort)
"""Time spent on samples: ``fast`` takes ranges as profiled, and rounds weights against few samples;
``best`` goes on searching where the default ends, on smaller parts of the network."""

FAST: Effort = "fast"
DEFAULT: Effort = "default"
BEST: Effort = "best"

ProfileWith = Literal["compiled", "interpreter"]
PROFILES_WITH: tuple[ProfileWith, ...] = get_args(ProfileWith)
"""Layers are computed on samples by machine code, or by the reference interpreter in NumPy: their
results are equal up to the rounding of float sums."""

COMPILED: ProfileWith = "compiled"

FAST_EQUALIZATIONS: tuple[Equalization, ...] = ("align-inputs", "fuse-functions")
FAST_RECOVERIES: tuple[Recovery, ...] = ("round-weights", "correct-bias")
"""Meaning of "auto" in ``fast``: techniques that need no trials, and few samples."""

WeightType = Literal["int4", "int8"]
WEIGHTS: tuple[WeightType, ...] = get_args(WeightType)
"""Weights in groups along the inner dimension of products: all that is quantized then."""

ActivationType = Literal["dynamic", "float"]
ACTIVATIONS: tuple[ActivationType, ...] = get_args(ActivationType)
"""Operands of such weights: rows rounded to int8 when they are computed, or float."""

GROUP_SIZES = (16, 32, 64, 128, 256)

BESIDE_WEIGHTS = ("group_size", "activations", "symmetric_weights")
"""Options that mean something beside ``weights`` alone."""


class Scope(Protocol):
    """Nodes by names, patterns and types, such as NNCF's ``IgnoredScope``."""

    @property
    def names(self) -> Iterable[str]: ...


IgnoredNodes = str | Iterable[str] | Scope | None

_ONNXRUNTIME_METHODS = {0: "minmax", 1: "entropy", 2: "percentile"}


@fields_named
@dataclass(frozen=True, repr=False)
class IgnoredScope(Concise):
    """Nodes that stay float: names, regular expressions, op types (NNCF's words), all of them as
    the model has them, whatever its nodes are fused or taken apart to.

    ``validate``: an entry that matches nothing is an error.
    """

    names: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    validate: bool = True

    @staticmethod
    def of(scope: Any) -> IgnoredScope:
        """From None, strings, or any object with ``names``, ``patterns`` and ``types``.

        Among strings ``re:…`` is a regular expression; the others are names or globs.  A name is
        that of a node of the model or of a value that it computes.
        """
        if scope is None:
            return IgnoredScope()
        if isinstance(scope, str) or not hasattr(scope, "names"):
            return IgnoredScope(names=strings(scope, "ignored_scope"))
        if getattr(scope, "subgraphs", None):
            raise OptionError("ignored_scope.subgraphs is not supported; list the nodes by name")
        return IgnoredScope(
            strings(scope.names, "ignored_scope.names"),
            strings(getattr(scope, "patterns", ()), "ignored_scope.patterns"),
            strings(getattr(scope, "types", ()), "ignored_scope.types"),
            flag("ignored_scope.validate", getattr(scope, "validate", True)),
        )


RANGES = OptionKind(lambda name, value: method_name(value), {"choices": METHODS})
SCOPE = OptionKind(lambda name, value: IgnoredScope.of(value), {"nargs": "+"})


def techniques(allowed: Iterable[str]) -> OptionKind:
    """Names of techniques, or "auto"; a command line says "none" for no technique."""
    words = tuple(allowed)
    choices = [AUTO, NONE, *words]

    def check(name: str, value: Any) -> Any:
        if isinstance(value, str) and value == AUTO:
            return AUTO
        return tuple(choice(name, word, words) for word in strings(value, name))

    return OptionKind(check, {"nargs": "+", "choices": choices, "metavar": "TECHNIQUE"})


def share(name: str, value: Any) -> float:
    """A percentage of values that a range keeps.  Raises ``OptionError``."""
    percent = number(name, value)
    if not 50 < percent <= 100:
        raise OptionError(f"{name} must be in (50, 100], got {percent}")
    return percent


def _size_of_group(name: str, value: Any) -> int:
    """One of ``GROUP_SIZES``.  Raises ``OptionError``."""
    size = integer(name, value, 1, max(GROUP_SIZES))
    if size not in GROUP_SIZES:
        raise OptionError(f"{name} must be one of {GROUP_SIZES}, got {value}")
    return size


@document
@by_position
@fields_named
@dataclass(frozen=True, kw_only=True, repr=False)
class QuantizationConfig(Options):
    """How ``quantize`` turns a float graph into an int8 graph."""

    preset: Preset = option(
        "mixed",
        choice_among(PRESETS),
        '"mixed": asymmetric activations; "performance": zero points are fixed, at 0, or at -128 '
        "where no value is negative",
    )
    calibrate_method: Method | Enum = option(
        "auto",
        RANGES,
        'how ranges are chosen from histograms; "auto": by the error in the results, given '
        'samples, else as "minmax".  In Python, members of onnxruntime\'s CalibrationMethod, too',
    )
    percentile: float = option(
        99.999,
        OptionKind(share, {"type": float}),
        'share of the values that the method "percentile" keeps, in percent',
    )
    per_channel: bool = option(
        True, SWITCH, "a scale for each output channel of weights, else one for each tensor"
    )
    ignored_scope: IgnoredNodes = option(
        None,
        SCOPE,
        'nodes that stay float: names of nodes or of their results, globs, "re:" and a regular '
        "expression; in Python also an ``IgnoredScope``, or that of NNCF",
        metavar="NODE",
    )
    nodes_to_exclude: Iterable[str] | None = option(
        None, NAMES, "the same as ``ignored_scope``, by onnxruntime's name", metavar="NODE"
    )
    op_types_to_quantize: Iterable[str] | None = option(
        None,
        NAMES,
        "operator types to quantize; all others stay float.  What was fused into an operator "
        "(bias, normalization, activation) goes with it, and so does all that is in a function or "
        "in the subgraphs of an operator (If, Loop)",
        metavar="OP",
    )
    quantize_output: bool = option(
        False,
        SWITCH,
        "round the results of the last layers to int8, too, instead of giving float32, and numbers "
        "of inputs that are only copied to outputs",
    )
    int16_activations: str | Iterable[str] = option(
        (),
        NAMES,
        'values stored as int16, named as in ``ignored_scope``; or "auto": those that pay, for 5 % '
        "more time, or none where int8 is as close to float without them; it needs samples",
        metavar="VALUE",
    )
    recovery: Literal["auto"] | Iterable[Recovery] = option(
        AUTO,
        techniques(RECOVERIES),
        f'how weights are rounded for accuracy, given samples: {", ".join(RECOVERIES)}; "auto": '
        "those that are worth their time",
    )
    equalization: Literal["auto"] | Iterable[Equalization] = option(
        AUTO,
        techniques(EQUALIZATIONS),
        "how the float network is rewritten for accuracy, given samples: "
        f'{", ".join(EQUALIZATIONS)}; "auto": each where it helps',
    )
    effort: Effort = option(
        DEFAULT,
        choice_among(EFFORTS),
        '"fast": in seconds, without search on samples; "best": a longer search, and the output '
        "noise on held-back samples never grows",
    )
    seed: int = option(0, NATURAL, "draws the samples that decide which techniques are kept")
    profile_with: ProfileWith = option(
        COMPILED,
        choice_among(PROFILES_WITH),
        'layers are computed on samples by machine code ("compiled") or by NumPy ("interpreter"); '
        "values are equal up to the rounding of float sums",
    )
    weights: WeightType | None = option(
        None,
        choice_among(WEIGHTS).or_none(),
        "quantize only the constant weights of products, in groups of ``group_size``; this needs "
        "no calibration data, and rounds better with samples",
    )
    group_size: int = option(
        64,
        OptionKind(_size_of_group, {"type": int, "choices": GROUP_SIZES}),
        "weights that share a scale",
    )
    activations: ActivationType = option(
        "dynamic",
        choice_among(ACTIVATIONS),
        'operands of products with ``weights``: rounded to int8 as they come ("dynamic"), '
        'or "float"',
    )
    symmetric_weights: bool = option(
        True, SWITCH, "one zero point for all groups of ``weights``, else one for each"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        is_fast = self.effort == FAST
        if self.recovery == AUTO:
            chosen = FAST_RECOVERIES if is_fast else AUTO_RECOVERIES
            object.__setattr__(self, "recovery", chosen)
        if self.equalization == AUTO:
            rewrites = FAST_EQUALIZATIONS if is_fast else EQUALIZATIONS
            object.__setattr__(self, "equalization", rewrites)
        if self.weights is None and (stray := _beside_weights(self)):
            raise OptionError(
                f"{stray} is for quantized weights alone. Remedy: pass weights='int4' or 'int8', "
                "or leave it out."
            )

    @property
    def scope(self) -> IgnoredScope:
        """``ignored_scope``."""
        return IgnoredScope.of(self.ignored_scope)

    @property
    def method(self) -> str:
        """The name of ``calibrate_method``, one of ``METHODS``."""
        return method_name(self.calibrate_method)

    @property
    def texts(self) -> dict[str, str]:
        """The options in words, without those of ``weights`` where there are none."""
        unused = () if self.weights else ("weights", *BESIDE_WEIGHTS)
        return {n: _in_words(getattr(self, n)) for n in declarations(type(self)) if n not in unused}

    @property
    def weight_bits(self) -> int:
        """Bits of ``weights``, if there are any."""
        return 4 if self.weights == "int4" else 8

    @property
    def symmetric(self) -> bool:
        """Whether activations get a fixed zero point."""
        return self.preset == "performance"


def _in_words(value: Any) -> str:
    """The value of an option in words."""
    if isinstance(value, IgnoredScope):
        return _in_words((*value.names, *value.patterns, *value.types))
    if isinstance(value, tuple | list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def _beside_weights(config: QuantizationConfig) -> str:
    """The first option beside ``weights`` that is not at its default, or an empty text."""
    defaults = {each.name: each.default for each in fields(config)}
    return next((n for n in BESIDE_WEIGHTS if getattr(config, n) != defaults[n]), "")


def method_name(method: Any) -> str:
    """``minmax`` from ``"MinMax"``, ``CalibrationMethod.MinMax`` or its integer 0."""
    if type(method) is int and method in _ONNXRUNTIME_METHODS:
        return _ONNXRUNTIME_METHODS[method]
    name = getattr(method, "name", method)
    return choice("calibrate_method", name.lower() if isinstance(name, str) else name, METHODS)

"""Options of quantization.  Plain data, checked at construction; no graph is needed yet."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, Literal, Protocol, get_args

from quantglow.support.arguments import choice, fields_named, flag, integer, number, strings
from quantglow.support.classes import Concise
from quantglow.support.errors import OptionError

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

DropType = Literal["absolute", "relative"]
Schedule = Literal["fast", "memory"]
Progress = bool | Literal["auto"]
"""Options of ``quantize_and_compile`` beside those of ``QuantizationConfig``."""


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


@fields_named
@dataclass(frozen=True, repr=False)
class QuantizationConfig(Concise):
    """How ``quantize`` turns a float graph into an int8 graph.

    preset                mixed | performance, see ``PRESETS``
    calibrate_method      see ``METHODS``; onnxruntime's ``CalibrationMethod`` members also pass
    percentile            share of values kept by ``percentile``, in percent
    per_channel           one weight scale for each output channel, else one for each tensor
    ignored_scope         nodes that stay float, see ``IgnoredScope.of``
    nodes_to_exclude      the same, as onnxruntime calls it
    op_types_to_quantize  if given, all other op types stay float; what was fused into an operator
                          (bias, normalization, activation) goes with it, and so does all that
                          is in a function or in the subgraphs of an operator (If, Loop)
    int16_activations     values stored as int16: names, globs or "re:" expressions, as in
                          ``ignored_scope``; or "auto": those that pay, for 5 % more time, see
                          ``quantization.search.time_budget``, or none if int8 is as close to float
                          without them; it needs calibration samples
    recovery              techniques of ``RECOVERIES``, or "auto" for ``AUTO_RECOVERIES``; they need
                          calibration samples, a Profile alone does not do
    equalization          techniques of ``EQUALIZATIONS``, or "auto"; they need samples, too
    effort                one of ``EFFORTS``
    seed                  draws the samples that decide what is kept of these
    profile_with          one of ``PROFILES_WITH``
    weights               one of ``WEIGHTS``: products with constant weights take these in groups,
                          and nothing else is quantized; None: weights and activations are int8
    group_size            weights with a scale of their own, see ``GROUP_SIZES``
    activations           one of ``ACTIVATIONS``, beside ``weights``
    symmetric_weights     one zero point for all groups of ``weights``, else one for each
    quantize_output       round the last layer to int8 too, instead of giving its float32 result,
                          and numbers of inputs that are only copied to outputs
    """

    preset: Preset = "mixed"
    calibrate_method: Any = "auto"
    percentile: float = 99.999
    per_channel: bool = True
    ignored_scope: Any = None
    nodes_to_exclude: Iterable[str] | None = None
    op_types_to_quantize: Iterable[str] | None = None
    quantize_output: bool = False
    int16_activations: Any = ()
    recovery: Any = "auto"
    equalization: Any = "auto"
    effort: Effort = DEFAULT
    seed: int = 0
    profile_with: ProfileWith = COMPILED
    weights: WeightType | None = None
    group_size: int = 64
    activations: ActivationType = "dynamic"
    symmetric_weights: bool = True

    def __post_init__(self) -> None:
        choice("preset", self.preset, PRESETS)
        choice("effort", self.effort, EFFORTS)
        choice("profile_with", self.profile_with, PROFILES_WITH)
        normal: dict[str, Any] = {
            "calibrate_method": method_name(self.calibrate_method),
            "percentile": number("percentile", self.percentile),
            "per_channel": flag("per_channel", self.per_channel),
            "ignored_scope": IgnoredScope.of(self.ignored_scope),
            "nodes_to_exclude": strings(self.nodes_to_exclude, "nodes_to_exclude"),
            "op_types_to_quantize": strings(self.op_types_to_quantize, "op_types_to_quantize"),
            "quantize_output": flag("quantize_output", self.quantize_output),
            "int16_activations": strings(self.int16_activations, "int16_activations"),
            "recovery": recoveries(self.recovery, self.effort),
            "equalization": equalizations(self.equalization, self.effort),
            "seed": integer("seed", self.seed),
            "group_size": integer("group_size", self.group_size, 1, max(GROUP_SIZES)),
            "symmetric_weights": flag("symmetric_weights", self.symmetric_weights),
        }
        if not 50 < normal["percentile"] <= 100:
            raise OptionError(f"percentile must be in (50, 100], got {normal['percentile']}")
        if normal["group_size"] not in GROUP_SIZES:
            raise OptionError(f"group_size must be one of {GROUP_SIZES}, got {self.group_size}")
        if self.weights is not None:
            choice("weights", self.weights, WEIGHTS)
        choice("activations", self.activations, ACTIVATIONS)
        if self.weights is None and (stray := beside_weights(self)):
            raise OptionError(
                f"{stray} is for quantized weights alone. Remedy: pass weights='int4' or 'int8', "
                "or leave it out."
            )
        for name, value in normal.items():
            object.__setattr__(self, name, value)

    @property
    def weight_bits(self) -> int:
        """Bits of ``weights``, if there are any."""
        return 4 if self.weights == "int4" else 8

    @property
    def symmetric(self) -> bool:
        """Whether activations get a fixed zero point."""
        return self.preset == "performance"


def beside_weights(config: QuantizationConfig) -> str:
    """The first option beside ``weights`` that is not at its default, or an empty text."""
    defaults = {field.name: field.default for field in fields(config)}
    names = ("group_size", "activations", "symmetric_weights")
    return next((name for name in names if getattr(config, name) != defaults[name]), "")


def method_name(method: Any) -> str:
    """``minmax`` from ``"MinMax"``, ``CalibrationMethod.MinMax`` or its integer 0."""
    if type(method) is int and method in _ONNXRUNTIME_METHODS:
        return _ONNXRUNTIME_METHODS[method]
    name = getattr(method, "name", method)
    return choice("calibrate_method", name.lower() if isinstance(name, str) else name, METHODS)


def recoveries(chosen: Any, effort: str = DEFAULT) -> tuple[str, ...]:
    """Names of techniques from "auto", a name, several, or None.  Raises ``OptionError``."""
    if isinstance(chosen, str) and chosen == "auto":
        return FAST_RECOVERIES if effort == FAST else AUTO_RECOVERIES
    return tuple(choice("recovery", name, RECOVERIES) for name in strings(chosen, "recovery"))


def equalizations(chosen: Any, effort: str = DEFAULT) -> tuple[str, ...]:
    """As ``recoveries``, of ``EQUALIZATIONS``."""
    if isinstance(chosen, str) and chosen == "auto":
        return FAST_EQUALIZATIONS if effort == FAST else EQUALIZATIONS
    names = strings(chosen, "equalization")
    return tuple(choice("equalization", name, EQUALIZATIONS) for name in names)

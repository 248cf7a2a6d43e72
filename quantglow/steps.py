"""Steps before and after a model that become part of it, as in OpenVINO's PrePostProcessor.

::

    from quantglow import steps

    compiled = qg.compile(
        "model.onnx",
        before=[
            steps.ElementType("uint8"),
            steps.Layout("NHWC"),
            steps.Resize(224, 224),
            steps.Rescale(1 / 255),
            steps.Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
        ],
        after=[steps.Softmax(), steps.TopK(5)],
    )

``ElementType`` and ``Layout`` describe the input that is fed, wherever they stand.  The other steps
compute in float32, in their order; the last result is what the model takes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from quantglow.support.arguments import (
    brief,
    choice,
    fields_named,
    flag,
    integer,
    is_series,
    number,
)
from quantglow.support.errors import OptionError

ELEMENT_TYPES = ("uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
"""Element types that an input may be declared to have."""

RESIZE_MODES = ("linear", "nearest")

LAYOUTS = {2: "NC", 3: "NCW", 4: "NCHW", 5: "NCDHW"}
"""Layout that a model is taken to have, by rank: that of PyTorch."""

MOST = 2**31 - 1
"""Largest size and count."""


class Step:
    """A step, before or after a model."""


class Before(Step):
    """A step from the data that is fed to the input of the model."""


class After(Step):
    """A step from an output of the model to what the caller gets."""


@fields_named
@dataclass(frozen=True)
class ElementType(Before):
    """The input is fed in this element type, as ``ElementType("uint8")`` for images."""

    name: str

    def __post_init__(self) -> None:
        choice("ElementType", self.name, ELEMENT_TYPES)


@fields_named
@dataclass(frozen=True)
class Layout(Before, After):
    """The order of axes outside of the model: of the input that is fed, or of the result.

    outside  letters of the axes: N batch, C channels, D depth, H height, W width
    model    those of the model's own input or output; None: "NCHW" for four axes, likewise for
             others
    """

    outside: str
    model: str | None = None

    def __post_init__(self) -> None:
        inside = self.inside
        if sorted(inside) != sorted(self.outside) or len(set(inside)) != len(inside):
            raise OptionError(
                f"Layout {self.outside!r} has other axes than the model's {inside!r}. "
                "Remedy: write both with the same letters, each once."
            )

    @property
    def inside(self) -> str:
        """The layout of the model's own tensor."""
        for letters in (self.outside, self.model or "NC"):
            if not isinstance(letters, str) or not letters or set(letters) - set("NCDHW"):
                raise OptionError(
                    f"Layout takes letters of 'NCDHW', as 'NHWC'; got {brief(letters)}."
                )
        return self.model or LAYOUTS.get(len(self.outside), "")


@fields_named
@dataclass(frozen=True)
class Resize(Before):
    """Resize images to ``height`` times ``width``, by the centers of pixels ("half_pixel").

    Images of any size may be fed then; a size that ``input_shapes`` fixes compiles to one program.
    "linear" weighs the two nearest rows and columns.  With ``antialias`` it weighs all pixels below
    a result where an image shrinks, as Pillow and torchvision do; each size of images has a program
    of its own then.
    """

    height: int
    width: int
    mode: str = "linear"
    antialias: bool = False

    def __post_init__(self) -> None:
        integer("Resize height", self.height, 1, MOST)
        integer("Resize width", self.width, 1, MOST)
        choice("Resize mode", self.mode, RESIZE_MODES)
        if flag("Resize antialias", self.antialias) and self.mode != "linear":
            raise OptionError("Resize antialias is for mode 'linear'. Remedy: leave one out.")


@fields_named
@dataclass(frozen=True)
class Rescale(Before):
    """``x * factor``, as 1 / 255 for bytes."""

    factor: float

    def __post_init__(self) -> None:
        finite("Rescale factor", self.factor)


@fields_named
@dataclass(frozen=True)
class Normalize(Before):
    """``(x - mean) / std``: one number, or one for each channel, as torchvision's."""

    mean: float | tuple[float, ...]
    std: float | tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", numbers("Normalize mean", self.mean))
        object.__setattr__(self, "std", numbers("Normalize std", self.std))
        if 0 in self.std:  # type: ignore[operator]
            raise OptionError(f"Normalize std must not be 0, got {self.std}")


@fields_named
@dataclass(frozen=True)
class ReverseChannels(Before):
    """The channels in reverse order: BGR images for a model of RGB."""


@fields_named
@dataclass(frozen=True)
class Softmax(After):
    """``exp(x) / sum(exp(x))`` along an axis: scores become probabilities."""

    axis: int = -1

    def __post_init__(self) -> None:
        axis("Softmax", self.axis)


@fields_named
@dataclass(frozen=True)
class Sigmoid(After):
    """``1 / (1 + exp(-x))``"""


@fields_named
@dataclass(frozen=True)
class TopK(After):
    """The ``k`` largest values along an axis, in descending order, and a further output
    ``NAME_indices`` with their indices.  No step comes behind it.
    """

    k: int
    axis: int = -1

    def __post_init__(self) -> None:
        integer("TopK k", self.k, 1, MOST)
        axis("TopK", self.axis)


@fields_named
@dataclass(frozen=True)
class ArgMax(After):
    """The index of the largest value along an axis; ``keepdims`` keeps the axis with size 1.  No
    step comes behind it.
    """

    axis: int = -1
    keepdims: bool = False

    def __post_init__(self) -> None:
        axis("ArgMax", self.axis)
        flag("ArgMax keepdims", self.keepdims)


Kind = TypeVar("Kind", bound=Step)
ByName = Mapping[str | None, tuple[Kind, ...]]
"""Steps by the name of an input or output; None: the only one of the model."""


def check(option: str, value: Any, kind: type[Kind]) -> ByName[Kind]:
    """Steps as the user gives them: one, several, or a mapping by name.  Raises ``OptionError``."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        steps = several(option, value, kind)
        return {None: steps} if steps else {}
    if not all(isinstance(name, str) for name in value):
        raise OptionError(f"{option} must map names to lists of steps, got {brief(value)}")
    lists = {name: several(f"{option}[{name!r}]", steps, kind) for name, steps in value.items()}
    return {name: steps for name, steps in lists.items() if steps}


def several(option: str, value: Any, kind: type[Kind]) -> tuple[Kind, ...]:
    """A tuple of steps, the declarations among them at most once.  Raises ``OptionError``."""
    series = (value,) if isinstance(value, Step) else value
    expected = f"steps of quantglow.steps, as {'Normalize' if kind is Before else 'Softmax'}"
    if not is_series(series):
        raise OptionError(f"{option} takes {expected}; got {brief(value)}")
    steps = tuple(series)
    for step in steps:
        if not isinstance(step, kind):
            raise OptionError(f"{option} takes {expected}; got {brief(step)}")
    for single in (ElementType, Layout):
        if sum(isinstance(step, single) for step in steps) > 1:
            raise OptionError(f"{option} has more than one {single.__name__}. Remedy: keep one.")
    return steps


# -- helpers


def finite(option: str, value: Any) -> float:
    scalar = number(option, value)
    if not math.isfinite(scalar):
        raise OptionError(f"{option} must be finite, got {scalar}")
    return scalar


def numbers(option: str, value: Any) -> tuple[float, ...]:
    """One finite number, or several."""
    if isinstance(value, str | bytes | Mapping):
        raise OptionError(f"{option} takes numbers, got {brief(value)}")
    values = tuple(finite(option, n) for n in (value if is_series(value) else [value]))
    if not values:
        raise OptionError(f"{option} takes one number, or one for each channel; got none")
    return values


def axis(step: str, value: Any) -> int:
    return integer(f"{step} axis", value, -MOST, MOST)

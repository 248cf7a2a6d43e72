"""Steps before and after a model, as words of the command line.

A step is ``NAME`` or ``NAME:ARGUMENTS``; ``INPUT=`` before it says of which input or output it is,
and those behind it up to the next name.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from quantglow import steps
from quantglow.support.arguments import choice
from quantglow.support.errors import OptionError

BEFORE = (
    "element-type:uint8 layout:NHWC resize:HEIGHT,WIDTH[,antialias] rescale:1/255 "
    "normalize:MEAN,…,STD,… reverse-channels"
)
ANTIALIAS = "antialias"
"""A third argument of ``resize``, as the modes are."""

AFTER = "softmax sigmoid topk:K argmax layout:NHWC"


def step_words(options: argparse.Namespace) -> list[str]:
    """The flags of steps as they were given."""
    options_by_flag = (("--before", options.before), ("--after", options.after))
    return [word for flag, words in options_by_flag if words for word in (flag, *words)]


def list_steps(option: str, words: Sequence[str] | None) -> Any:
    """A list of steps, or lists by name, which holds for the words behind it, too."""
    named: dict[str, list[steps.Step]] = {}
    current = ""
    for word in words or ():
        name, equals, text = word.rpartition("=")
        current = name if equals else current
        named.setdefault(current, []).append(parse(option, text))
    if "" not in named:
        return named or None
    if len(named) > 1:
        raise OptionError(
            f"{option} has steps before the first name, {[*(words or ())]}. Remedy: begin with "
            "NAME=STEP."
        )
    return named[""]


def parse(option: str, text: str) -> steps.Step:
    """The step of a word.  Raises ``OptionError``."""
    name, _, arguments = text.partition(":")
    make = STEPS[choice(option, name, STEPS)]
    try:
        return make(*filter(None, arguments.split(",")))
    except (ValueError, TypeError, ZeroDivisionError) as error:
        if isinstance(error, OptionError):
            raise
        raise OptionError(
            f"{option}: {text!r} has arguments that the step does not take. "
            f"Remedy: write it as in {BEFORE} {AFTER}."
        ) from error


def _fraction(text: str) -> float:
    """The number of ``1/255`` or ``0.5``; never a ``Fraction``, whose digits may fill memory."""
    above, slash, below = text.partition("/")
    return float(above) / float(below) if slash else float(above)


def normalize(*words: str) -> steps.Normalize:
    """The first half are means, the second half standard deviations."""
    numbers, half = tuple(map(_fraction, words)), len(words) // 2
    if len(words) != 2 * half:
        raise ValueError("an odd number of numbers")
    return steps.Normalize(numbers[:half], numbers[half:])


def resize(height: str, width: str, mode: str = "linear") -> steps.Resize:
    """The mode is one of ``RESIZE_MODES``, or "antialias"."""
    if mode == ANTIALIAS:
        return steps.Resize(int(height), int(width), antialias=True)
    return steps.Resize(int(height), int(width), mode)


STEPS: dict[str, Callable[..., steps.Step]] = {
    "argmax": lambda axis="-1": steps.ArgMax(int(axis)),
    "element-type": steps.ElementType,
    "layout": steps.Layout,
    "normalize": normalize,
    "rescale": lambda factor: steps.Rescale(_fraction(factor)),
    "resize": resize,
    "reverse-channels": steps.ReverseChannels,
    "sigmoid": steps.Sigmoid,
    "softmax": lambda axis="-1": steps.Softmax(int(axis)),
    "topk": lambda k, axis="-1": steps.TopK(int(k), int(axis)),
}

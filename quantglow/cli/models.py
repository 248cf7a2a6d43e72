"""The model that a command runs: a saved one, or an ONNX file compiled now."""

from __future__ import annotations

import argparse
from typing import Any

from quantglow.cli.arguments import shapes_of
from quantglow.cli.files import is_saved
from quantglow.cli.steps import steps_of, words_of
from quantglow.driver import compilation
from quantglow.driver.loading import load
from quantglow.errors import OptionError
from quantglow.runtime.answers import WAIT
from quantglow.runtime.compiled import CompiledModel
from quantglow.runtime.fallback_model import FallbackModel


def opened(options: argparse.Namespace) -> CompiledModel | FallbackModel:
    """The compiled model of ``options``: a saved one, or an ONNX file."""
    code: Any = getattr(options, "code", "ignore")
    tune: Any = getattr(options, "tune", None)
    while_compiling: Any = getattr(options, "while_compiling", WAIT)
    if is_saved(options.model):
        refuse_steps(options)
        return load(
            options.model,
            options.target,
            options.num_threads,
            schedule=options.schedule,
            code=code,
            tune=tune,
            while_compiling=while_compiling,
        )
    if code != "ignore":
        raise OptionError(
            f"--code is for saved models, {options.model!r} is ONNX. Remedy: omit it."
        )
    return compilation.compile(
        options.model,
        options.target,
        options.num_threads,
        input_shapes=shapes_of(options),
        schedule=options.schedule,
        tune=tune,
        while_compiling=while_compiling,
        **steps_of(options),
    )


def refuse_steps(options: argparse.Namespace) -> None:
    """Raise ``OptionError`` if steps are given for a saved model, and no ONNX file beside it."""
    if words_of(options) and not getattr(options, "onnx", None):
        raise OptionError(
            f"--before and --after are for ONNX models, {options.model!r} is a saved one. Remedy: "
            "give them where the model is compiled; a saved model has its steps."
        )


def refuse_shapes_of_saved(options: argparse.Namespace) -> None:
    """Raise ``OptionError`` if shapes are given for a saved model, which contains them."""
    if is_saved(options.model) and options.input_shapes:
        raise OptionError(
            f"input_shapes is for ONNX models, {options.model!r} is a saved one. Remedy: omit it; "
            "a model with free dimensions takes the shapes of what it is fed."
        )

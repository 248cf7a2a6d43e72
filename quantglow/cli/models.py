"""The model that a command runs: a saved one, or an ONNX file compiled now."""

from __future__ import annotations

import argparse

from quantglow.cli.arguments import shapes_of
from quantglow.cli.files import is_saved
from quantglow.driver import compilation
from quantglow.driver.loading import load
from quantglow.errors import OptionError
from quantglow.runtime.compiled import CompiledModel
from quantglow.runtime.fallback_model import FallbackModel


def opened(options: argparse.Namespace) -> CompiledModel | FallbackModel:
    """The compiled model of ``options``: a saved one, or an ONNX file."""
    code = getattr(options, "code", "ignore")
    if is_saved(options.model):
        return load(
            options.model,
            options.target,
            options.num_threads,
            schedule=options.schedule,
            code=code,
        )
    if code != "ignore":
        raise OptionError(
            f"--code is for saved models, {options.model!r} is ONNX. Remedy: omit it."
        )
    shapes = shapes_of(options)
    return compilation.compile(
        options.model,
        options.target,
        options.num_threads,
        input_shapes=shapes,
        schedule=options.schedule,
    )


def refuse_shapes_of_saved(options: argparse.Namespace) -> None:
    """Raise ``OptionError`` if shapes are given for a saved model, which contains them."""
    if is_saved(options.model) and options.input_shapes:
        raise OptionError(
            f"input_shapes is for ONNX models, {options.model!r} is a saved one. Remedy: omit it; "
            "a model with free dimensions takes the shapes of what it is fed."
        )

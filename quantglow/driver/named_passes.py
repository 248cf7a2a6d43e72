"""Every pass over graphs and over programs by its name, for tools that run single ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any, TypeVar

from quantglow.errors import OptionError
from quantglow.graph.rewrite import Pass, RewritePass
from quantglow.lowering import LOWERING_PASSES, lower
from quantglow.memory.passes import PROGRAM_PASSES, ProgramPass
from quantglow.pass_manager import pass_name
from quantglow.passes import FLOAT_PASSES, optimize
from quantglow.passes.repeat import single_passes
from quantglow.quantization.qdq import QDQ_PASSES

Step = TypeVar("Step", bound=Callable[..., Any])


def by_name(passes: Iterable[Step]) -> dict[str, Step]:
    """The passes by their names, in their order."""
    return {pass_name(step): step for step in passes}


GRAPH_PASSES: dict[str, Pass] = by_name(
    [*single_passes((*FLOAT_PASSES, *QDQ_PASSES, *LOWERING_PASSES)), optimize, lower]
)
"""Passes over graphs: those of ``optimize``, of models that come quantized, and of ``lower``."""

NAMED_PROGRAM_PASSES: dict[str, ProgramPass] = by_name(PROGRAM_PASSES)


def chosen(names: Iterable[str], passes: dict[str, Step], others: Iterable[str]) -> list[Step]:
    """The passes of these names.  Raises ``OptionError``, with a near name; ``others`` are names of
    passes over the other representation.
    """
    return [found(name, passes, others) for name in names]


def found(name: str, passes: dict[str, Step], others: Iterable[str]) -> Step:
    if name in passes:
        return passes[name]
    if name in others:
        raise OptionError(
            f"pass {name!r} is over programs or graphs, whichever the text is not. Remedy: "
            "`quantglow opt --list` says over what each pass runs."
        )
    near = get_close_matches(name.replace("_", "-"), passes, 1)
    hint = f", did you mean {near[0]!r}?" if near else "."
    raise OptionError(f"there is no pass {name!r}{hint} `quantglow opt --list` names all")


def summary(step: Callable[..., Any]) -> str:
    """The first sentence of a pass's documentation, the equation of a rule."""
    text = step.doc if isinstance(step, RewritePass) else (step.__doc__ or "")
    return " ".join(text.split("\n\n")[0].split())

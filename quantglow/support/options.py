"""Options of public functions, each declared once.

An option is a field of a frozen dataclass.  The field is its name, type and default; ``option``
adds its check, its help, and how the command line reads it::

    @dataclass(frozen=True, kw_only=True, repr=False)
    class DataOptions(Options):
        subset_size: int = option(300, COUNT, "Maximum number of calibration samples.")

All else is derived: the check at construction (``Options``), signature and docstring of a function
(``takes_options``), the docs' tables, and flags (``quantglow.cli.arguments``).  Type checkers infer
the keywords of a function from the constructor of its class, so there is no second list for them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import wraps
from textwrap import fill
from typing import Any, ParamSpec, TypeVar

from quantglow.support.arguments import (
    choice,
    count,
    flag,
    integer,
    no_option,
    number,
    positive,
    progress_mode,
    shapes,
    strings,
)
from quantglow.support.classes import Concise

KEY = "option"
"""The entry of a field's metadata that holds its ``Declaration``."""

WIDTH, COLUMN = 100, 22
"""Columns of a docstring, and of a name with the space behind it."""

Parameters = ParamSpec("Parameters")
Chosen = TypeVar("Chosen")
Part = TypeVar("Part", bound="Options")
Result = TypeVar("Result")


@dataclass(frozen=True)
class OptionKind:
    """The values of an option.

    check  name and value -> the value in its one type; raises ``OptionError``
    flag   argparse's keywords for its flag; ``type=bool`` is a switch, and None that there is no
           flag, because a command line has no such values
    """

    check: Callable[[str, Any], Any]
    flag: Mapping[str, Any] | None = field(default_factory=dict)

    def or_none(self) -> OptionKind:
        """The same values, and None."""
        return OptionKind(
            lambda name, value: value if value is None else self.check(name, value), self.flag
        )


ANY = OptionKind(lambda name, value: value)
OBJECT = OptionKind(ANY.check, None)
"""An object of Python, which the function checks: a command line has none."""

SWITCH = OptionKind(flag, {"type": bool})
COUNT = OptionKind(count, {"type": int})
NATURAL = OptionKind(integer, {"type": int})
NUMBER = OptionKind(number, {"type": float})
POSITIVE = OptionKind(positive, {"type": float})
NAMES = OptionKind(lambda name, value: strings(value, name), {"nargs": "+"})
SHAPES = OptionKind(shapes, {"nargs": "+"})
PROGRESS = OptionKind(progress_mode, {"type": bool})


def choice_among(allowed: Iterable[str]) -> OptionKind:
    """One of some words."""
    words = tuple(allowed)
    return OptionKind(lambda name, value: choice(name, value, words), {"choices": words})


@dataclass(frozen=True)
class Declaration:
    """An option beside its name, type and default, which are those of a field.

    help  the one text of docstrings, of the docs and of ``--help``; a name in double backquotes may
          be that of another option
    flag  the keywords of the kind and of the option for argparse, see ``OptionKind``
    """

    help: str
    kind: OptionKind = ANY
    flag: Mapping[str, Any] | None = None


def option(default: Any, kind: OptionKind, help: str, **flag: Any) -> Any:
    """A field with a default; ``flag``: keywords of argparse beside those of its kind."""
    words = None if kind.flag is None else {**kind.flag, **flag}
    return field(default=default, metadata=argument(help, kind, words))


def same_option(kind: type[Any], name: str) -> Any:
    """The field of another class, for one that takes it by position, too."""
    (same,) = (each for each in fields(kind) if each.name == name)
    return field(default=same.default, metadata=same.metadata)


def argument(
    help: str, kind: OptionKind = ANY, flag: Mapping[str, Any] | None = None
) -> Mapping[str, Declaration]:
    """The metadata of a field without a default, ``field(metadata=argument(...))``: type checkers
    take the result of any other function for a default."""
    return {KEY: Declaration(help, kind, flag)}


class Options(Concise):
    """Base of classes of options: each value is checked, and takes the one type of its kind."""

    def __post_init__(self) -> None:
        for name, declared in declarations(type(self)).items():
            object.__setattr__(self, name, declared.kind.check(name, getattr(self, name)))


def declarations(kind: Any) -> dict[str, Declaration]:
    """The options of a class, by name."""
    return {each.name: each.metadata[KEY] for each in fields(kind) if KEY in each.metadata}


def own_flags(kind: type[Any]) -> tuple[str, ...]:
    """Names of the options with flags that a class declares itself, unlike those of its bases."""
    names, declared = inspect.get_annotations(kind), declarations(kind)
    return tuple(name for name in names if name in declared and declared[name].flag is not None)


def option_values(options: Options, kind: type[Options]) -> dict[str, Any]:
    """The values that ``options`` has of the options of one of its base classes, by name."""
    return {name: getattr(options, name) for name in declarations(kind)}


def select_options(options: Options, kind: type[Part]) -> Part:
    """The same as an object of the base class."""
    return kind(**option_values(options, kind))


def options_table(kind: type[Any]) -> str:
    """The options of a class as a docstring lists parameters."""
    space = " " * COLUMN
    return "\n".join(
        fill(
            declared.help,
            WIDTH,
            initial_indent=f"{name}  ".ljust(COLUMN),
            subsequent_indent=space,
            break_long_words=False,
            break_on_hyphens=False,
        )
        for name, declared in declarations(kind).items()
    )


def _with_table(docstring: str | None, kind: type[Any]) -> str | None:
    """A docstring with the options of a class behind its first paragraph; None under ``-OO``."""
    if docstring is None:
        return None
    summary, _, more = inspect.cleandoc(docstring).partition("\n\n")
    return "\n\n".join(filter(None, (summary, options_table(kind), more)))


def document(kind: type[Part]) -> type[Part]:
    """Class decorator: its docstring lists its options."""
    kind.__doc__ = _with_table(kind.__doc__, kind)
    return kind


def by_position(kind: type[Part]) -> type[Part]:
    """Class decorator: its constructor takes its options by position, too, in their order; those of
    derived classes do not.

    Type checkers and signatures have keywords only: positions would be those of derived classes.
    """
    names, by_name = tuple(declarations(kind)), kind.__init__

    @wraps(by_name)
    def init(self: Part, *args: Any, **kwargs: Any) -> None:
        named = dict(zip(names, args, strict=False))
        by_name(self, *args[len(names) :], **named, **kwargs)

    type.__setattr__(kind, "__init__", init)
    return kind


def takes_options(
    kind: Callable[Parameters, Chosen],
) -> Callable[[Callable[[Chosen], Result]], Callable[Parameters, Result]]:
    """Decorator: a function of an object with options gets the parameters of its class.

    Raises ``OptionError`` for keywords that there are not, with the nearest, ``TypeError`` for
    arguments that are missing.
    """

    def decorated(function: Callable[[Chosen], Result]) -> Callable[Parameters, Result]:
        signature = inspect.signature(kind).replace(
            return_annotation=function.__annotations__.get("return", inspect.Signature.empty)
        )

        @wraps(function)
        def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            for name in kwargs:
                if name not in signature.parameters:
                    raise no_option(function.__qualname__, name, signature.parameters)
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{function.__qualname__}() is called wrongly: {error}") from None
            return function(kind(*args, **kwargs))

        vars(call)["__signature__"] = signature
        call.__doc__ = _with_table(function.__doc__, kind)  # type: ignore[arg-type]
        return call

    return decorated

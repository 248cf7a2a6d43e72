"""``--config FILE``: flags of a command from a TOML file.

::

    calibration_data = "samples.npz"     # --calibration-data samples.npz
    symmetric_weights = false            # --no-symmetric-weights
    ignored_scope = ["scores", "boxes"]  # --ignored-scope scores boxes

Names are those of flags, with either ``-`` or ``_``.  Flags of the command line come later, so they
win.
"""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Iterator, Sequence
from typing import Any

from quantglow.errors import FileFormatError, OptionError
from quantglow.files import cause

FLAG = "--config"
MAX_NBYTES = 1 << 20


def with_config(words: Sequence[str], commands: dict[str, argparse.ArgumentParser]) -> list[str]:
    """The words of a command line, with the flags of its file in place of ``--config``.

    Raises ``FileFormatError`` for a file that is no TOML, and ``OptionError`` for entries that are
    no flags of the command.
    """
    command = next((word for word in words if word in commands), None)
    if command is None or not any(word.partition("=")[0] == FLAG for word in words):
        return list(words)
    own = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    own.add_argument(FLAG, action="append", default=[])
    place = list(words).index(command)
    found, rest = own.parse_known_args(list(words[place + 1 :]))
    given = [word for path in found.config for word in words_of(path, command, commands[command])]
    return [*words[: place + 1], *rest_behind(rest, given)]


def rest_behind(rest: Sequence[str], given: Sequence[str]) -> list[str]:
    """Positional arguments, then the file's flags, then those that were typed.

    A flag with several values would take a positional argument behind it.
    """
    first = next((at for at, word in enumerate(rest) if word.startswith("--")), len(rest))
    return [*rest[:first], *given, *rest[first:]]


def words_of(path: str, command: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    """The flags of a file."""
    for name, value in entries(path).items():
        flag = f"--{name.replace('_', '-')}"
        action = parser._option_string_actions.get(flag)
        if action is None or flag == FLAG:
            raise OptionError(
                f"{path}: {command} has no flag {flag}. Remedy: `quantglow help {command}` lists "
                "its flags."
            )
        yield from flag_words(flag, value, action, path)


def entries(path: str) -> dict[str, Any]:
    """The entries of a TOML file."""
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_NBYTES + 1)
        if len(content) > MAX_NBYTES:
            raise ValueError(f"it is larger than {MAX_NBYTES} bytes")
        return tomllib.loads(content.decode())
    except (OSError, ValueError, RecursionError) as error:
        raise FileFormatError(
            f"config: cannot read {path!r}: {cause(error) if isinstance(error, OSError) else error}"
            ". Remedy: a TOML file with flags as names."
        ) from error


def flag_words(flag: str, value: Any, action: argparse.Action, path: str) -> list[str]:
    """The words of one flag, as they would be typed."""
    if isinstance(value, bool) and action.nargs == 0:
        return [flag] if value else [f"--no-{flag[2:]}"] if has_negative(action) else []
    values = value if isinstance(value, list) else [value]
    if not values or any(isinstance(v, bool | dict | list) for v in values):
        raise OptionError(f"{path}: {flag} cannot be {value!r}. Remedy: a text, a number or a list")
    texts = [str(v) for v in values]
    if isinstance(action, argparse._AppendAction):
        return [word for text in texts for word in (flag, text)]
    return [f"{flag}={texts[0]}"] if len(texts) == 1 and action.nargs is None else [flag, *texts]


def has_negative(action: argparse.Action) -> bool:
    """Whether a flag can be turned off."""
    return isinstance(action, argparse.BooleanOptionalAction)

"""``quantglow``: the command line.  Flags are the keywords of the Python functions."""

from __future__ import annotations

import argparse
import errno
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import takewhile
from typing import Any

from rich.console import Console

from quantglow.cli import (
    INTERRUPTED,
    bench,
    bundle,
    calibrate,
    commands,
    compare,
    completion,
    debug,
    demo,
    inspect,
    opt,
    tune,
)
from quantglow.cli.files import STDIN, check_timeline, from_stdin
from quantglow.cli.flags import FLAG, in_flags, with_config
from quantglow.support.errors import OptionError, QuantglowError
from quantglow.support.files import cause
from quantglow.support.progress import heartbeat
from quantglow.support.timeline import tracing
from quantglow.version import __version__

DESCRIPTION = """Quantizes ONNX models to int8, and compiles them for this processor.  Flags are
the keywords of the Python functions; `quantglow COMMAND --help` explains them.

Exit codes: 0 done, 1 an error of the model, the data or the options, 2 wrong usage."""

WIDE = 160
"""Width without a terminal, in columns: names of layers are not cut."""

UNWRITABLE = (errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOSPC, errno.EPIPE)
"""Error numbers of a failed write to stdout."""


@dataclass(frozen=True)
class Command:
    """A subcommand: its summary in one line, its arguments, and its action."""

    summary: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace, Console], None]
    example: str


def _help_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", nargs="?", choices=list(COMMANDS), metavar="COMMAND")


def _print_help(options: argparse.Namespace, console: Console) -> None:
    """Print the help of a command, or of all."""
    with suppress(SystemExit):
        parser().parse_args([options.topic, "--help"] if options.topic else ["--help"])


def _print_completion(options: argparse.Namespace, console: Console) -> None:
    """Print the script that completes this command line."""
    completion.run(options, console, parser())


COMMANDS: dict[str, Command] = {
    "help": Command(
        "show what a command does and its flags",
        _help_arguments,
        _print_help,
        "quantglow help quantize",
    ),
    "demo": Command(
        "two embedded networks: profile, int8, machine code, check against onnxruntime",
        demo.add_arguments,
        demo.run,
        "quantglow demo",
    ),
    "profile": Command(
        "record the range of every tensor on calibration data",
        commands.profile_arguments,
        commands.profile,
        "quantglow profile net.onnx --calibration-data samples.npz --output net.profile.npz",
    ),
    "quantize": Command(
        "quantize to int8, check against onnxruntime, print the report, save the model",
        commands.quantize_arguments,
        commands.quantize,
        "quantglow quantize net.onnx --calibration-data samples.npz --output net.qgm",
    ),
    "compile": Command(
        "compile a model as it is (float, or quantized already) and save it",
        commands.compile_arguments,
        commands.compile,
        "quantglow compile net.onnx --output net.qgm",
    ),
    "run": Command(
        "run a model on the arrays of an .npz file",
        commands.run_arguments,
        commands.run,
        "quantglow run net.qgm --inputs one.npz --output result.npz",
    ),
    "bench": Command(
        "measure the latency of a model",
        bench.add_arguments,
        bench.run,
        "quantglow bench net.qgm --num-threads 2",
    ),
    "compare": Command(
        "compare int8 with onnxruntime's quantizer and NNCF on your model and data",
        compare.add_arguments,
        compare.run,
        "quantglow compare net.onnx --calibration-data samples.npz",
    ),
    "inspect": Command(
        "print a stage of the compiler: graph, primitives, program, memory plan or report",
        inspect.add_arguments,
        inspect.run,
        "quantglow inspect net.qgm --stage program",
    ),
    "opt": Command(
        "run passes by name over the text of a graph or a program, and print the result",
        opt.add_arguments,
        opt.run,
        "quantglow opt graph.txt -p fold-batch-norm -p fuse-activation",
    ),
    "calibrate": Command(
        "reproduce a calibration recipe: profile, quantize, evaluate, hold against its gate",
        calibrate.add_arguments,
        calibrate.run,
        "quantglow calibrate calibration/mnist.toml",
    ),
    "bundle": Command(
        "write an object, a C header and weights, for programs without Python",
        bundle.add_arguments,
        bundle.run,
        "quantglow bundle net.onnx --calibration-data samples.npz --target neon --output net",
    ),
    "tune": Command(
        "measure this processor's core, or the kernels of a model, to compile faster programs",
        tune.add_arguments,
        tune.run,
        "quantglow tune net.qgm --max-minutes 5",
    ),
    "completion": Command(
        "print a script that completes commands and flags in bash, zsh or fish",
        completion.add_arguments,
        _print_completion,
        "quantglow completion bash > ~/.local/share/bash-completion/completions/quantglow",
    ),
    "debug": Command(
        "show which layers lose accuracy in int8, and why",
        debug.add_arguments,
        debug.run,
        "quantglow debug net.onnx --calibration-data samples.npz --output net.html",
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line (default: the process's own); its exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    try:
        options = parse(words)
        console = Console(soft_wrap=False, width=width())
        with ExitStack() as stack:
            if getattr(options, "model", None) == STDIN:
                options.model = stack.enter_context(from_stdin())
            check_timeline(vars(options))
            if getattr(options, "trace", None) is not None:
                stack.enter_context(tracing(options.trace))
            stack.enter_context(heartbeat(f"quantglow {options.command}"))
            COMMANDS[options.command].run(options, console)
        console.file.flush()
    except QuantglowError as error:
        command, is_option = words[0] if words else "", isinstance(error, OptionError)
        text = in_flags(str(error), command, parsers(), is_about_option=is_option)
        print(f"quantglow: {type(error).__name__}: {text}", file=sys.stderr)
        return 1
    except OSError as error:
        if error.filename is not None or error.errno not in UNWRITABLE:
            raise  # It is not about stdout, which has no name.
        # Its reader has closed it, or its disk is full; it must not raise again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            print(f"quantglow: cannot write to stdout: {cause(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def width() -> int | None:
    """Columns of a table: those of COLUMNS or of the terminal, and many for a file or pipe; None:
    of the terminal, whatever its size becomes.
    """
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    columns = os.environ.get("COLUMNS")
    if columns is None:
        return None if is_terminal else WIDE
    has_columns = columns.isdecimal() and int(columns) > 0
    return shutil.get_terminal_size().columns if has_columns or is_terminal else WIDE


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The options of a command line and of its ``--config`` files."""
    top = parser()
    return top.parse_args(with_config(words, parsers(top)))


def parsers(top: argparse.ArgumentParser | None = None) -> dict[str, argparse.ArgumentParser]:
    """The parser of each command."""
    actions = (top or parser())._actions
    (subparsers,) = (a for a in actions if isinstance(a, argparse._SubParsersAction))
    return dict(subparsers.choices)


def parser() -> argparse.ArgumentParser:
    """All commands and their flags."""
    top = _Parser(prog="quantglow", description=DESCRIPTION, **_RAW)
    top.add_argument("--version", action="version", version=f"quantglow {__version__}")
    subparsers = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        command_parser = subparsers.add_parser(
            name,
            help=command.summary,
            description=command.summary,
            epilog=f"example:\n  {command.example}",
            **_RAW,
        )
        command.add_arguments(command_parser)
        if any(action.option_strings != ["-h", "--help"] for action in command_parser._actions):
            command_parser.add_argument(
                FLAG, metavar="FILE", help="TOML file with flags of this command"
            )
        command_parser.usage = _usage(command_parser)
    return top


def _usage(parser: argparse.ArgumentParser) -> str:
    """Required arguments of a command, the model first: a flag with several values would swallow
    it.
    """
    needed = [action for action in parser._actions if action.required]
    needed.sort(key=lambda action: bool(action.option_strings))
    words = (word for a in needed for word in (*a.option_strings, str(a.metavar or a.dest)))
    return " ".join([parser.prog, *words, "[OPTION ...]"])


class _Parser(argparse.ArgumentParser):
    """A parser without abbreviated flags: a new flag never changes the meaning of a script."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "allow_abbrev": False})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does, but report an unknown flag before a missing argument."""
        words = list(sys.argv[1:] if args is None else args)
        if self._subparsers is not None:  # Flags behind the command belong to the command.
            words = list(takewhile(_is_flag, words))
        for flag in filter(_is_flag, takewhile(lambda word: word != "--", words)):
            if (name := flag.partition("=")[0]) not in self._option_string_actions:
                self.error(_unknown_flag(name, list(self._option_string_actions)))
        return super().parse_known_args(args, namespace)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Check as argparse does; name the nearest choice."""
        choices = [str(choice) for choice in action.choices or ()]
        if action.choices is not None and value not in action.choices:
            near = get_close_matches(str(value).replace("_", "-").lower(), choices, 1)
            hint = f"did you mean {near[0]}?" if near else f"choose from {', '.join(choices)}"
            raise argparse.ArgumentError(action, f"there is no {value!r}, {hint}")
        super()._check_value(action, value)


def _unknown_flag(name: str, flags: Sequence[str]) -> str:
    """Message for an unknown flag, with the nearest known one."""
    near = get_close_matches(name.replace("_", "-").lower(), flags, 1)
    return f"there is no flag {name}" + (f", did you mean {near[0]}?" if near else "")


def _is_flag(word: str) -> bool:
    """Whether argparse takes a word for a flag: not a lone dash, a number or a text."""
    return len(word) > 1 and word[0] == "-" and " " not in word and not word[1:2].isdigit()


_RAW: dict[str, Any] = {"formatter_class": argparse.RawDescriptionHelpFormatter}


if __name__ == "__main__":
    sys.exit(main())
